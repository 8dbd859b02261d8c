//! Measures the cost of an idle server when one process runs many, and of a call within the process.

use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use fleetwright_apiserver::{Config, Handle, Server};
use fleetwright_lab::measure::process;
use kube::Client;
use serde_json::{Value, json};

use crate::load::{self, call, config_map, get, millis, post};
use crate::report::{Report, Unit};

/// Calls within the process that are timed.
const CALLS: usize = 2_000;

/// The row for the memory of one idle server. A real one is measured beside it, in its own processes.
pub(crate) fn memory_row(count: usize) -> String {
    format!("one idle server of {count} in a process: memory")
}

/// Runs `bench idle COUNT` and records its output.
pub(crate) async fn measure(report: &mut Report, count: usize) -> Result<()> {
    eprintln!("bench:          starting {count} servers in one process");
    let output = tokio::process::Command::new(std::env::current_exe()?)
        .args(["idle", &count.to_string()])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .kill_on_drop(true)
        .output()
        .await?;
    ensure!(output.status.success(), "`bench idle {count}` ended with {}", output.status);
    let told: Value = serde_json::from_slice(&output.stdout)?;
    let number = |name: &str| told[name].as_f64().with_context(|| format!("`bench idle` told no {name}"));
    let name = format!("one idle server of {count} in a process");
    report.add(memory_row(count), Unit::KiB, number("memory")? / 1024.0);
    report.add(format!("{name}: JSON of its objects"), Unit::KiB, number("objects")? / 1024.0);
    report.add(
        format!("{name}: memory beyond its objects"),
        Unit::KiB,
        (number("memory")? - number("objects")?) / 1024.0,
    );
    report.add(format!("{name}: time to start"), Unit::Millis, number("start")?);
    report.add(format!("{name}: CPU in a second"), Unit::CpuMicros, number("cpu")?);
    report.add("within the process: creates (ConfigMap)", Unit::PerSecond, number("creates")?);
    report.add("within the process: gets", Unit::PerSecond, number("gets")?);
    Ok(())
}

/// Runs many servers and prints the cost of one.
pub(crate) async fn child(arguments: &[String]) -> Result<()> {
    let count: usize = arguments.first().context("how many?")?.parse()?;
    let own = std::process::id();
    // The first server creates the shared state.
    let first = Server::start(Config::default()).await?;
    settle().await;
    let before = process::resident(own)?;
    let started = Instant::now();
    let mut servers: Vec<Handle> = Vec::with_capacity(count);
    for _ in 0..count {
        servers.push(Server::start(Config::default()).await?);
    }
    let start = millis(started.elapsed()) / count as f64;
    settle().await;
    let memory = process::resident(own)?.saturating_sub(before) as f64 / count as f64;
    let (cpu, watched) = (process::cpu(own)?, Instant::now());
    settle().await;
    let cpu = (process::cpu(own)? - cpu).as_secs_f64() * 1e6 / watched.elapsed().as_secs_f64() / count as f64;
    let objects = objects(&first.client()).await?;
    let (creates, gets) = calls(&first.client()).await?;
    println!(
        "{}",
        json!({
            "memory": memory, "objects": objects, "start": start, "cpu": cpu, "creates": creates, "gets": gets,
        })
    );
    Ok(())
}

async fn settle() {
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
}

/// The bytes of all objects of a server, as it lists them.
async fn objects(client: &Client) -> Result<usize> {
    let read = async |path: &str| -> Result<Value> { Ok(serde_json::from_slice(&call(client, get(path)?).await?)?) };
    let mut groups = vec!["/api/v1".to_owned()];
    for group in read("/apis").await?["groups"].as_array().context("no groups")? {
        let version = group["preferredVersion"]["groupVersion"].as_str().context("a group without a version")?;
        // Its events are those of core/v1.
        if !version.starts_with("events.k8s.io/") {
            groups.push(format!("/apis/{version}"));
        }
    }
    let mut bytes = 0;
    for group in groups {
        for resource in read(&group).await?["resources"].as_array().context("no resources")? {
            let lists = resource["verbs"].as_array().is_some_and(|verbs| verbs.contains(&json!("list")));
            if let (true, Some(name)) = (lists, resource["name"].as_str()) {
                let list = read(&format!("{group}/{name}")).await?;
                for item in list["items"].as_array().into_iter().flatten() {
                    bytes += item.to_string().len();
                }
            }
        }
    }
    Ok(bytes)
}

/// Creates and gets in a second, one after the other, without a network.
async fn calls(client: &Client) -> Result<(f64, f64)> {
    let path = "/api/v1/namespaces/default/configmaps";
    let started = Instant::now();
    for number in 0..CALLS {
        call(client, post(path, &config_map(number, 0))?).await?;
    }
    let creates = CALLS as f64 / started.elapsed().as_secs_f64();
    let started = Instant::now();
    for number in 0..CALLS {
        call(client, get(&format!("{path}/{}", load::name_of(number)))?).await?;
    }
    Ok((creates, CALLS as f64 / started.elapsed().as_secs_f64()))
}
