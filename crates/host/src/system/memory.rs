//! A host in memory: deterministic, and small enough for ten thousand of them in one process.
//!
//! A [`Memory`] is one process on such a host; [`Memory::process`] starts another on the same host, and dropping one ends it. Changes
//! from outside go through [`Memory::host`]: files changed by others, stopped units, a reboot, a power cut.
//! [`Faults`] are the injected faults.

mod content;
mod faults;
mod files;
mod machine;
mod packages;
mod programs;
mod units;

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub use content::Content;
pub use faults::{BrokenUnit, Faults, Web};
pub use machine::Machine;
pub use packages::Packages;

use super::{DebState, ProgramResult, ProgramRun, Stat, System, UnitState, UnitVerb};

/// A process on a host in memory.
#[derive(Debug)]
pub struct Memory {
    machine: Arc<Mutex<Machine>>,
    process: u64,
}

impl Memory {
    /// A bare host of that name, and the first process on it.
    pub fn new(name: &str) -> Self {
        let mut machine = Machine::new(name);
        let process = machine.start_process();
        Self { machine: Arc::new(Mutex::new(machine)), process }
    }

    /// Another process on the same host.
    pub fn process(&self) -> Self {
        let process = self.host().start_process();
        Self { machine: self.machine.clone(), process }
    }

    /// The host itself, to read and change it from outside. The lock must be held only for a moment: all processes of the host wait for it.
    pub fn host(&self) -> MutexGuard<'_, Machine> {
        self.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this process has crashed or hangs, by the [`Faults`], or the host went down. Its answers are lost.
    pub fn gone(&self) -> bool {
        !self.host().runs(self.process)
    }

    /// Starts a call that changes nothing.
    fn looking(&self) -> io::Result<MutexGuard<'_, Machine>> {
        let machine = self.host();
        if machine.runs(self.process) { Ok(machine) } else { Err(ended()) }
    }

    /// Starts a call that changes something: the point where processes crash. A crash leaves the effect of `half`.
    fn changing(&self, half: impl FnOnce(&mut Machine)) -> io::Result<MutexGuard<'_, Machine>> {
        let mut machine = self.looking()?;
        machine.count(self.process, half)?;
        Ok(machine)
    }

    /// Starts a call that writes to the disk.
    fn writing(&self, half: impl FnOnce(&mut Machine)) -> io::Result<MutexGuard<'_, Machine>> {
        let machine = self.changing(half)?;
        machine.faults.writable()?;
        Ok(machine)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let process = self.process;
        self.host().end_process(process);
    }
}

fn ended() -> io::Error {
    io::Error::other("the process has ended")
}

impl System for Memory {
    fn read(&self, path: &str, limit: u64) -> io::Result<Option<Vec<u8>>> {
        self.looking()?.read(path, limit)
    }

    fn stat(&self, path: &str) -> io::Result<Option<Stat>> {
        Ok(self.looking()?.stat(path))
    }

    fn sha256(&self, path: &str) -> io::Result<Option<String>> {
        self.looking()?.sha256(path)
    }

    fn write(&mut self, path: &str, content: &[u8], mode: u32, owner: &str, group: &str) -> io::Result<()> {
        let mut machine = self.writing(|_| ())?;
        if machine.faults.lies && !path.starts_with(fleetwright_wire::HOME) {
            return Ok(());
        }
        machine.write(path, Content::of(path, content), mode, owner, group)
    }

    fn set_mode(&mut self, path: &str, mode: u32, owner: &str, group: &str) -> io::Result<()> {
        self.writing(|_| ())?.set_mode(path, mode, owner, group)
    }

    fn link(&mut self, path: &str, target: &str) -> io::Result<()> {
        self.writing(|_| ())?.link(path, target)
    }

    fn remove(&mut self, path: &str) -> io::Result<bool> {
        // A directory is removed file by file.
        let mut machine = self.changing(|machine| machine.remove_half(path))?;
        machine.faults.removable()?;
        Ok(machine.remove(path))
    }

    fn remove_empty(&mut self, path: &str) -> io::Result<bool> {
        let mut machine = self.changing(|_| ())?;
        machine.faults.removable()?;
        Ok(machine.remove_empty(path))
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        Ok(self.looking()?.list(path))
    }

    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        self.writing(|_| ())?.rename(from, to)
    }

    fn unpack(&mut self, archive: &str, into: &str, strip: u32) -> io::Result<()> {
        let half = |machine: &mut Machine| {
            let _ = machine.write(&format!("{into}/half"), Content::of(into, b"half"), 0o644, "root", "root");
        };
        self.writing(half)?.unpack(archive, into, strip)
    }

    fn fetch(
        &mut self,
        url: &str,
        to: &str,
        limit: u64,
        within: Duration,
        on_progress: &mut dyn FnMut(u64, Option<u64>),
    ) -> io::Result<()> {
        let half = |machine: &mut Machine| {
            let _ = machine.write(to, Content::of(to, b"half"), 0o600, "root", "root");
        };
        let mut machine = self.writing(half)?;
        let content = machine.faults.fetched(url, to)?;
        machine.pass(within)?;
        if content.size() > limit {
            return Err(io::Error::other(format!("{} bytes, more than {limit}", content.size())));
        }
        let size = content.size();
        machine.packages.fetched(url, content.sha256());
        machine.write(to, content, 0o600, "root", "root")?;
        // The receiver of progress may access the host.
        drop(machine);
        on_progress(size, Some(size));
        Ok(())
    }

    fn connects(&self, address: &str, within: Duration) -> io::Result<()> {
        let mut machine = self.looking()?;
        machine.pass(within)?;
        if machine.answers(address) { Ok(()) } else { Err(io::ErrorKind::ConnectionRefused.into()) }
    }

    fn http_status(&self, url: &str, within: Duration) -> io::Result<u16> {
        let mut machine = self.looking()?;
        machine.pass(within)?;
        if machine.answers(url) { Ok(200) } else { Err(io::ErrorKind::ConnectionRefused.into()) }
    }

    fn run(&mut self, run: &ProgramRun<'_>) -> io::Result<ProgramResult> {
        let mut machine = self.changing(|machine| programs::run_half(machine, run))?;
        programs::run(&mut machine, run)
    }

    fn look(&self, run: &ProgramRun<'_>) -> io::Result<ProgramResult> {
        programs::run(&mut *self.looking()?, run)
    }

    fn unit(&self, name: &str) -> io::Result<UnitState> {
        Ok(self.looking()?.unit(name))
    }

    fn unit_do(&mut self, name: &str, verb: UnitVerb, within: Duration) -> io::Result<()> {
        let mut machine = self.changing(|_| ())?;
        machine.pass(within)?;
        machine.unit_do(name, verb)
    }

    fn reload_units(&mut self) -> io::Result<()> {
        self.changing(|_| ())?.reload_units();
        Ok(())
    }

    fn debs(&self, names: &[&str]) -> io::Result<BTreeMap<String, DebState>> {
        Ok(self.looking()?.packages.debs(names))
    }

    fn rpms(&self, names: &[&str]) -> io::Result<BTreeMap<String, String>> {
        Ok(self.looking()?.packages.rpms(names))
    }

    fn sysctl(&self, name: &str) -> io::Result<Option<String>> {
        Ok(self.looking()?.sysctl(name))
    }

    fn set_sysctl(&mut self, name: &str, value: &str) -> io::Result<()> {
        let mut machine = self.changing(|_| ())?;
        if !machine.faults.lies {
            machine.set_sysctl(name, value);
        }
        Ok(())
    }

    fn command_line(&self) -> io::Result<String> {
        Ok(self.looking()?.command_line.to_string())
    }

    fn module(&self, name: &str) -> io::Result<bool> {
        Ok(self.looking()?.modules.contains(name))
    }

    fn facts(&self) -> io::Result<fleetwright_wire::Facts> {
        Ok(self.looking()?.facts())
    }

    fn reboot(&mut self) -> io::Result<()> {
        self.changing(|_| ())?.ask_for_boot();
        Ok(())
    }

    fn own_process(&self) -> String {
        self.host().process_name(self.process)
    }

    fn lives(&self, process: &str) -> bool {
        self.host().process_lives(process)
    }

    fn lock(&mut self, path: &str) -> io::Result<bool> {
        let process = self.process;
        let mut machine = self.writing(|_| ())?;
        machine.lock(path, process)
    }

    fn unlock(&mut self, path: &str) -> io::Result<()> {
        let process = self.process;
        self.looking()?.unlock(path, process);
        Ok(())
    }

    fn now(&self) -> i64 {
        self.host().now()
    }

    fn elapsed(&self) -> Duration {
        self.host().elapsed
    }

    fn pause(&self, time: Duration) {
        self.host().advance(time);
    }
}
