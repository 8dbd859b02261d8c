//! The simulated hosts, in a process of their own, behind a socket that carries the lines of the protocol.

use std::collections::HashSet;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result};
use fleetwright_host::Host;
use fleetwright_host::system::memory::Memory;
use fleetwright_wire::{Answer, Request};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};

/// The first line of a connection.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Hello {
    /// Connects to the helper on that host.
    Host(String),
    /// Reads the counts.
    Stats,
    /// Reads the counts, and resets that of visited hosts.
    Mark,
}

/// Counts of requests.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Stats {
    /// All requests so far.
    pub(crate) requests: u64,
    /// Different hosts since the mark.
    pub(crate) visited: u64,
}

#[derive(Default)]
struct All {
    hosts: Mutex<std::collections::HashMap<String, Arc<Memory>>>,
    visited: Mutex<HashSet<String>>,
    requests: AtomicU64,
}

impl All {
    fn stats(&self, mark: bool) -> Stats {
        let mut visited = self.visited.lock().unwrap();
        let stats = Stats { requests: self.requests.load(Ordering::Relaxed), visited: visited.len() as u64 };
        if mark {
            visited.clear();
        }
        stats
    }
}

/// Runs until it is killed.
pub(crate) async fn run(socket: &Path) -> Result<()> {
    let listener = UnixListener::bind(socket).with_context(|| format!("cannot listen on {}", socket.display()))?;
    let all = Arc::new(All::default());
    loop {
        let (stream, _) = listener.accept().await?;
        let all = all.clone();
        tokio::spawn(async move {
            if let Err(error) = serve(stream, &all).await {
                eprintln!("hosts: {error:#}");
            }
        });
    }
}

async fn serve(stream: UnixStream, all: &All) -> Result<()> {
    let (read, mut write) = stream.into_split();
    let mut lines = BufReader::new(read).lines();
    let Some(hello) = lines.next_line().await? else { return Ok(()) };
    let address = match serde_json::from_str(&hello)? {
        Hello::Host(address) => address,
        hello => {
            let stats = all.stats(matches!(hello, Hello::Mark));
            write.write_all(&line(&stats)?).await?;
            return Ok(());
        }
    };
    let memory = {
        let mut hosts = all.hosts.lock().unwrap();
        hosts.entry(address.clone()).or_insert_with(|| Arc::new(Memory::new(&address))).clone()
    };
    let mut helper = Host::new(memory.process());
    while let Some(text) = lines.next_line().await? {
        let request: Request = serde_json::from_str(&text)?;
        all.requests.fetch_add(1, Ordering::Relaxed);
        all.visited.lock().unwrap().insert(address.clone());
        let answer = helper.answer(request, &mut |_: Answer| {});
        write.write_all(&line(&answer)?).await?;
    }
    Ok(())
}

pub(crate) fn line(value: &impl Serialize) -> Result<Vec<u8>> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    Ok(line)
}
