//! Runs programs: in a process group of their own, with a timeout and with bounded output.

use std::io::{self, Read, Write as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::journal::LOG;
use crate::system::{ProgramResult, ProgramRun};

/// Bytes kept of a program's standard output.
const STDOUT: usize = 4 << 20;
/// Delay between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(3);
/// A process started by the program may hold its output open; it is not waited for any longer.
const OUTPUT_DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// The last bytes of an output, up to a limit.
#[derive(Default)]
struct LastBytes {
    bytes: Vec<u8>,
    limit: usize,
}

impl LastBytes {
    fn push(&mut self, more: &[u8]) {
        self.bytes.extend_from_slice(more);
        // Bytes are moved only now and then, not for every line.
        if self.bytes.len() > 2 * self.limit {
            self.cut();
        }
    }

    fn cut(&mut self) {
        let more = self.bytes.len().saturating_sub(self.limit);
        self.bytes.drain(..more);
    }

    fn text(&mut self) -> String {
        self.cut();
        // The tail may start inside a character.
        let start = self.bytes.iter().take(3).take_while(|byte| **byte & 0xc0 == 0x80).count();
        String::from_utf8_lossy(&self.bytes[start..]).into_owned()
    }
}

struct Output {
    both: LastBytes,
    stdout: LastBytes,
}

pub(super) fn run(run: &ProgramRun<'_>) -> io::Result<ProgramResult> {
    let (program, arguments) = run.argv.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let mut child = Command::new(program)
        .args(arguments)
        .env("LC_ALL", "C.UTF-8")
        .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        .envs(run.env.iter().copied())
        .current_dir("/")
        .stdin(if run.input.is_empty() { Stdio::null() } else { Stdio::piped() })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()?;
    let output = Arc::new(Mutex::new(Output {
        both: LastBytes { limit: LOG, ..LastBytes::default() },
        stdout: LastBytes { limit: STDOUT, ..LastBytes::default() },
    }));
    // Closed by the readers when both streams are at their end.
    let (open, ended) = mpsc::channel::<()>();
    if let Some(mut stdin) = child.stdin.take() {
        let input = run.input.to_vec();
        // A thread, because a program that does not read its input must not block us.
        thread::spawn(move || stdin.write_all(&input));
    }
    if let Some(stdout) = child.stdout.take() {
        follow(stdout, output.clone(), true, open.clone());
    }
    if let Some(stderr) = child.stderr.take() {
        follow(stderr, output.clone(), false, open.clone());
    }
    drop(open);
    let (status, timed_out) = wait(&mut child, run.within, &ended)?;
    let _ = ended.recv_timeout(OUTPUT_DRAIN_TIMEOUT);
    let mut output = output.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(ProgramResult { status, tail: output.both.text(), stdout: output.stdout.text(), timed_out })
}

fn follow(mut stream: impl Read + Send + 'static, output: Arc<Mutex<Output>>, stdout: bool, open: mpsc::Sender<()>) {
    thread::spawn(move || {
        let _open = open;
        let mut buffer = [0; 16 << 10];
        loop {
            match stream.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => {
                    let mut output = output.lock().unwrap_or_else(PoisonError::into_inner);
                    output.both.push(&buffer[..read]);
                    if stdout {
                        output.stdout.push(&buffer[..read]);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
    });
}

/// Waits for the exit, and kills the program at its timeout.
fn wait(child: &mut Child, within: Duration, ended: &mpsc::Receiver<()>) -> io::Result<(Option<i32>, bool)> {
    let mut until = Instant::now() + within;
    let mut signal = None;
    // Short waits at first: most programs are quick.
    let mut nap = Duration::from_millis(1);
    loop {
        if let Some(status) = child.try_wait()? {
            let status = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
            return Ok(if signal.is_some() { (None, true) } else { (status, false) });
        }
        if Instant::now() >= until {
            let next = if signal.is_none() { Signal::TERM } else { Signal::KILL };
            if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
                let _ = kill_process_group(group, next);
            }
            signal = Some(next);
            until = Instant::now() + GRACE;
        }
        // The end of its output is mostly the exit of the program; otherwise wait again.
        if ended.recv_timeout(nap) == Err(RecvTimeoutError::Disconnected) {
            thread::sleep(nap);
        }
        nap = (nap * 2).min(Duration::from_millis(50));
    }
}

/// Starts a program that outlives the helper.
pub(super) fn detached(argv: &[&str]) -> io::Result<()> {
    let (program, arguments) = argv.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .current_dir("/")
        .process_group(0)
        .spawn()?;
    Ok(())
}
