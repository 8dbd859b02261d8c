//! One simulated host, and the faults that can be injected into it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fleetwright_host::system::UnitVerb;
use fleetwright_host::system::memory::{Faults, Machine};
use fleetwright_host::{Host, Memory};
use fleetwright_wire::{Answer, HOME, Outcome, Request, StepRecord};

use crate::fleet::{Busy, Fleet, Inner};

/// The time from a requested reboot until the host goes down.
const MOMENT: Duration = Duration::from_secs(1);

/// The state of the network to a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Network {
    /// As fast as [`FleetTiming`](crate::FleetTiming) says.
    #[default]
    Healthy,
    /// Every request and answer is delayed by this time.
    Slow(Duration),
    /// Connections are accepted, and no answer arrives.
    Hangs,
    /// Connecting gets no answer: it takes the full connect timeout.
    Silent,
    /// Connecting fails at once.
    Unreachable,
}

/// The behavior of a host's helper.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HelperBehavior {
    /// The helper reports the real state.
    #[default]
    Normal,
    /// The helper reports success for each step and does nothing.
    FalseSuccess,
    /// The helper's answers are not valid in the protocol.
    InvalidOutput,
    /// The helper's answers exceed every limit.
    OversizedOutput,
}

/// A simulated host. Cheap to clone; clones are the same host.
#[derive(Clone)]
pub struct SimHost {
    pub(crate) inner: Arc<SimInner>,
}

pub(crate) struct SimInner {
    pub(crate) fleet: Arc<Inner>,
    address: Arc<str>,
    /// The first process on the host; it keeps the host's state alive.
    memory: Memory,
    behavior: Mutex<HostBehavior>,
    /// How often all connections were cut: connections with a lower count are dead.
    cut: AtomicU64,
    /// Helper processes that hang.
    hung: Mutex<Vec<Arc<Mutex<Host<Memory>>>>>,
}

/// The injected faults and the state outside of the host's own memory.
#[derive(Clone, Debug, Default)]
struct HostBehavior {
    network: Network,
    helper_behavior: HelperBehavior,
    key: u32,
    refuses_login: bool,
    /// The connection is cut in the middle of the next step.
    cut_next_step: bool,
    /// The power fails at the change that the memory counts to.
    power: bool,
    /// A reboot was requested and starts in a moment.
    boots: bool,
    /// The host stays off after a reboot.
    stays_down: bool,
    /// The duration of steps, instead of the fleet's.
    step: Option<Duration>,
}

impl SimHost {
    pub(crate) fn new(fleet: &Fleet, address: &str) -> Self {
        let inner = SimInner {
            fleet: fleet.inner.clone(),
            address: address.into(),
            memory: Memory::new(address),
            behavior: Mutex::default(),
            cut: AtomicU64::new(0),
            hung: Mutex::default(),
        };
        let host = Self { inner: Arc::new(inner) };
        host.sync_clock();
        host
    }

    /// The address of the host.
    pub fn address(&self) -> &str {
        &self.inner.address
    }

    /// The host's state, to read it or to cause drift. Hold the lock only for a moment.
    pub fn machine(&self) -> MutexGuard<'_, Machine> {
        self.inner.memory.host()
    }

    /// The content of every file, folder and link, to compare the host with an earlier state.
    pub fn tree(&self) -> BTreeMap<String, String> {
        self.machine().tree()
    }

    /// Changes the host, and lets its kubelet notice.
    pub fn modify<T>(&self, change: impl FnOnce(&mut Machine) -> T) -> T {
        self.sync_clock();
        let changed = change(&mut self.machine());
        self.inner.fleet.host_changed(self);
        changed
    }

    /// Sets the faults of all later steps.
    pub fn set_faults(&self, faults: Faults) {
        self.modify(|machine| machine.set_faults(faults));
    }

    /// Starts another process on the host.
    pub(crate) fn process(&self) -> Memory {
        self.inner.memory.process()
    }

    pub(crate) fn sync_clock(&self) {
        let now = self.inner.fleet.clock.now().as_second();
        self.machine().set_clock(now);
    }

    fn behavior(&self) -> MutexGuard<'_, HostBehavior> {
        self.inner.behavior.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a request to the helper without delay, as another operator over its own connection would.
    pub fn ask(&self, request: Request) -> Answer {
        self.sync_clock();
        Host::new(self.process()).answer(request, &mut |_| {})
    }

    // The network.

    /// The state of the network to the host.
    pub fn network(&self) -> Network {
        self.behavior().network
    }

    /// Changes the network for new connections. Existing connections stay.
    pub fn set_network(&self, network: Network) {
        self.behavior().network = network;
    }

    /// Cuts all connections. Running steps continue.
    pub fn cut(&self) {
        self.inner.cut.fetch_add(1, Ordering::SeqCst);
    }

    /// Cuts the connection in the middle of the next step. The step continues.
    pub fn cut_next_step(&self) {
        self.behavior().cut_next_step = true;
    }

    pub(crate) fn takes_cut(&self) -> bool {
        std::mem::take(&mut self.behavior().cut_next_step)
    }

    pub(crate) fn cuts(&self) -> u64 {
        self.inner.cut.load(Ordering::SeqCst)
    }

    /// The host key that the host shows.
    pub fn key(&self) -> String {
        let number = self.behavior().key;
        format!("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI{}{number}", hex(&self.inner.address))
    }

    /// Changes the host key, as a reinstallation or a man in the middle would.
    pub fn change_key(&self) {
        self.behavior().key += 1;
        self.cut();
    }

    /// Sets whether the host refuses the login.
    pub fn set_refuses_login(&self, refuses: bool) {
        self.behavior().refuses_login = refuses;
    }

    pub(crate) fn refuses_login(&self) -> bool {
        self.behavior().refuses_login
    }

    pub fn set_helper_behavior(&self, helper_behavior: HelperBehavior) {
        self.behavior().helper_behavior = helper_behavior;
    }

    pub(crate) fn helper_behavior(&self) -> HelperBehavior {
        self.behavior().helper_behavior
    }

    /// Sets the duration of the host's steps; the host waits in the middle of them.
    pub fn set_step(&self, step: Duration) {
        self.behavior().step = Some(step);
    }

    pub(crate) fn step(&self) -> Duration {
        let own = self.behavior().step;
        own.unwrap_or_else(|| self.inner.fleet.timing().step)
    }

    // Power.

    /// Whether the host has power.
    pub fn is_on(&self) -> bool {
        self.machine().on()
    }

    /// Takes the power away: every process ends at once.
    pub fn power_off(&self) {
        self.modify(Machine::power_off);
        self.cut();
    }

    /// Powers the host on, without a delay.
    pub fn power_on(&self) {
        self.modify(Machine::boot);
    }

    /// The power fails in the middle of the next step, at this change of it.
    pub fn power_off_at(&self, change: u64) {
        self.behavior().power = true;
        self.modify(|machine| {
            let faults = Faults { crash_at: Some(change), ..machine.faults.clone() };
            machine.set_faults(faults);
        });
    }

    pub(crate) fn keep_hung(&self, helper: Arc<Mutex<Host<Memory>>>) {
        self.inner.hung.lock().unwrap_or_else(PoisonError::into_inner).push(helper);
    }

    /// Handles a process that ended in the middle of a step: a planned power failure takes the host down.
    pub(crate) fn crashed(&self) {
        if std::mem::take(&mut self.behavior().power) {
            self.modify(|machine| {
                let faults = Faults { crash_at: None, ..machine.faults.clone() };
                machine.set_faults(faults);
                machine.power_off();
            });
            self.cut();
        }
    }

    /// Sets whether the host stays off after a reboot, until [`SimHost::power_on`].
    pub fn set_stays_down(&self, stays_down: bool) {
        self.behavior().stays_down = stays_down;
    }

    /// Reboots the host: it is off for the duration of a boot.
    pub fn reboot(&self) {
        let (host, fleet) = (self.clone(), self.inner.fleet.clone());
        host.power_off();
        if host.behavior().stays_down {
            return;
        }
        let busy = Busy::new(&fleet);
        fleet.runtime.clone().spawn(async move {
            let _busy = fleet.rest(Some(busy), fleet.timing().boot).await;
            host.power_on();
        });
    }

    /// Reboots the host on request of a step, with a delay, so that the step still gets its answer.
    pub(crate) fn reboot_soon(&self) {
        if std::mem::replace(&mut self.behavior().boots, true) {
            return;
        }
        let (host, fleet) = (self.clone(), self.inner.fleet.clone());
        let busy = Busy::new(&fleet);
        fleet.runtime.clone().spawn(async move {
            let _busy = fleet.rest(Some(busy), MOMENT).await;
            host.behavior().boots = false;
            if host.machine().boot_asked() {
                host.reboot();
            }
        });
    }

    // The journal.

    /// The host's own journal: every step that was ever started or refused, in order, with its outcome.
    pub fn journal(&self) -> Vec<StepRecord> {
        let folder = format!("{HOME}/journal/steps");
        let mut records: Vec<(u64, StepRecord)> = {
            let machine = self.machine();
            let names = machine.list(&folder);
            let read = |name: &String| machine.read(&format!("{folder}/{name}"), 1 << 20).ok().flatten();
            let parse = |bytes: Vec<u8>| {
                let written: serde_json::Value = serde_json::from_slice(&bytes).ok()?;
                let record = serde_json::from_value(written["record"].clone()).ok()?;
                Some((written["number"].as_u64().unwrap_or_default(), record))
            };
            names.iter().filter_map(read).filter_map(parse).collect()
        };
        records.sort_by_key(|(number, _)| *number);
        records.into_iter().map(|(_, record)| self.judged(record)).collect()
    }

    /// Asks the helper whether a step without an outcome still runs.
    fn judged(&self, record: StepRecord) -> StepRecord {
        if record.outcome != Outcome::Running || !self.is_on() {
            return record;
        }
        let asked = Request::Recall { id: record.id.clone() };
        match Host::new(self.process()).answer(asked, &mut |_| {}) {
            Answer::Recalled(Some(judged)) => judged,
            _ => record,
        }
    }

    // Drift.

    /// Changes a file, as somebody else on the host would.
    pub fn spoil_file(&self, path: &str, content: &str) {
        self.modify(|machine| machine.put(path, content.as_bytes(), 0o644));
    }

    /// Stops a unit, as somebody else on the host would.
    pub fn stop_unit(&self, unit: &str) {
        // A unit that does not exist is not running, either.
        self.modify(|machine| drop(machine.unit_do(unit, UnitVerb::Stop)));
    }

    /// Changes a sysctl, as somebody else on the host would.
    pub fn spoil_sysctl(&self, name: &str, value: &str) {
        self.modify(|machine| machine.set_sysctl(name, value));
    }

    /// Sets the offset of the host's clock in seconds.
    pub fn set_clock_off(&self, seconds: i64) {
        self.modify(|machine| machine.clock_off = seconds);
    }
}

impl fmt::Debug for SimHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimHost({})", self.inner.address)
    }
}

fn hex(text: &str) -> String {
    text.bytes().map(|byte| format!("{byte:02x}")).collect()
}
