//! One host, and what can be done to it.

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

/// From the moment that a host is told to boot until it goes down.
const MOMENT: Duration = Duration::from_secs(1);

/// How the network to a host is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Network {
    /// As fast as the fleet.
    #[default]
    Healthy,
    /// Every request and answer takes so long.
    Slow(Duration),
    /// Connections are made, and nothing comes back ever.
    Hangs,
    /// Nobody says anything: connecting takes as long as it may.
    Silent,
    /// It is known at once that it cannot be reached.
    Unreachable,
}

/// How the helper of a host speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HelperBehavior {
    /// It says what is.
    #[default]
    Normal,
    /// It says that each step ended well, and does nothing.
    FalseSuccess,
    /// What it says is none of our language.
    InvalidOutput,
    /// It says far more than anybody can want to know.
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
    /// The first process: the one that keeps the host.
    memory: Memory,
    behavior: Mutex<HostBehavior>,
    /// Connections of before are dead.
    cut: AtomicU64,
    /// Helpers that hang.
    hung: Mutex<Vec<Arc<Mutex<Host<Memory>>>>>,
}

/// What is outside of the host's own memory.
#[derive(Clone, Debug, Default)]
struct HostBehavior {
    network: Network,
    helper_behavior: HelperBehavior,
    key: u32,
    refuses_login: bool,
    /// The connection is cut in the middle of the next step.
    cut_next_step: bool,
    /// The power goes off at that change, counted from when it was set.
    power: bool,
    /// A boot was asked for and comes in a moment.
    boots: bool,
    /// A boot ends with the power off.
    stays_down: bool,
    /// Steps take so long instead of what the fleet says.
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

    /// Its address.
    pub fn address(&self) -> &str {
        &self.inner.address
    }

    /// The host itself: to look at it, and to do things to it behind everybody's back. Held only for a moment.
    pub fn machine(&self) -> MutexGuard<'_, Machine> {
        self.inner.memory.host()
    }

    /// Every file, folder and link, to compare it with how it was.
    pub fn tree(&self) -> BTreeMap<String, String> {
        self.machine().tree()
    }

    /// Hands on the host: changes it, and lets its kubelet notice.
    pub fn modify<T>(&self, change: impl FnOnce(&mut Machine) -> T) -> T {
        self.sync_clock();
        let changed = change(&mut self.machine());
        self.inner.fleet.host_changed(self);
        changed
    }

    /// What goes wrong by itself from now on.
    pub fn set_faults(&self, faults: Faults) {
        self.modify(|machine| machine.set_faults(faults));
    }

    /// Another process on it.
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

    /// Asks its helper at once, as another operator with a connection of its own would.
    pub fn ask(&self, request: Request) -> Answer {
        self.sync_clock();
        Host::new(self.process()).answer(request, &mut |_| {})
    }

    // The network.

    /// How the network to it is.
    pub fn network(&self) -> Network {
        self.behavior().network
    }

    /// Changes the network. Connections that stand stay.
    pub fn set_network(&self, network: Network) {
        self.behavior().network = network;
    }

    /// All connections are gone. Steps that are under way go on.
    pub fn cut(&self) {
        self.inner.cut.fetch_add(1, Ordering::SeqCst);
    }

    /// The connection over which the next step is asked for is gone before it ends. The step goes on.
    pub fn cut_next_step(&self) {
        self.behavior().cut_next_step = true;
    }

    pub(crate) fn takes_cut(&self) -> bool {
        std::mem::take(&mut self.behavior().cut_next_step)
    }

    pub(crate) fn cuts(&self) -> u64 {
        self.inner.cut.load(Ordering::SeqCst)
    }

    /// The host key that it shows.
    pub fn key(&self) -> String {
        let number = self.behavior().key;
        format!("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI{}{number}", hex(&self.inner.address))
    }

    /// It shows another host key from now on: it was installed anew, or somebody else answers.
    pub fn change_key(&self) {
        self.behavior().key += 1;
        self.cut();
    }

    /// Whether it lets us in.
    pub fn set_refuses_login(&self, refuses: bool) {
        self.behavior().refuses_login = refuses;
    }

    pub(crate) fn refuses_login(&self) -> bool {
        self.behavior().refuses_login
    }

    /// How its helper speaks.
    pub fn set_helper_behavior(&self, helper_behavior: HelperBehavior) {
        self.behavior().helper_behavior = helper_behavior;
    }

    pub(crate) fn helper_behavior(&self) -> HelperBehavior {
        self.behavior().helper_behavior
    }

    /// Its steps take so long, in the middle of them.
    pub fn set_step(&self, step: Duration) {
        self.behavior().step = Some(step);
    }

    pub(crate) fn step(&self) -> Duration {
        let own = self.behavior().step;
        own.unwrap_or_else(|| self.inner.fleet.timing().step)
    }

    // Power.

    /// Whether it has power.
    pub fn is_on(&self) -> bool {
        self.machine().on()
    }

    /// Everything on it ends where it is.
    pub fn power_off(&self) {
        self.modify(Machine::power_off);
        self.cut();
    }

    /// It comes up, at once.
    pub fn power_on(&self) {
        self.modify(Machine::boot);
    }

    /// The power goes off in the middle of the next step: at the so-many-th change that it makes.
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

    /// A process ended in the middle: by the power, if that is what was asked for.
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

    /// Whether it stays down when it boots, until somebody presses the button: see [`SimHost::power_on`].
    pub fn set_stays_down(&self, stays_down: bool) {
        self.behavior().stays_down = stays_down;
    }

    /// It goes down, and is up again when a boot is over.
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

    /// As it was told to: who asked still gets an answer.
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

    // What it remembers.

    /// The host's own journal: every step that was ever begun or refused, in order, and what became of each.
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

    /// Whether a step that was begun and not ended still runs is for the helper to say.
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

    /// Somebody changes a file.
    pub fn spoil_file(&self, path: &str, content: &str) {
        self.modify(|machine| machine.put(path, content.as_bytes(), 0o644));
    }

    /// Somebody stops a unit.
    pub fn stop_unit(&self, unit: &str) {
        // One that does not exist is not running, either.
        self.modify(|machine| drop(machine.unit_do(unit, UnitVerb::Stop)));
    }

    /// Somebody sets a sysctl.
    pub fn spoil_sysctl(&self, name: &str, value: &str) {
        self.modify(|machine| machine.set_sysctl(name, value));
    }

    /// Its clock is off by so many seconds from now on.
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
