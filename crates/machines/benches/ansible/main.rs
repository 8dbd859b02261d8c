//! Our operator against Ansible: the same four components on the same hosts, from bare hosts and with nothing to do.

mod ansible;
mod hosts;
mod operator;
mod ours;
mod work;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use fleetwright_lab::measure::{self, format_number, machine};
use serde_json::{Value, json};

use ansible::Ansible;
use hosts::{Hosts, Keys};
use work::Work;

/// One run over all hosts.
#[derive(Clone, Copy)]
pub struct Run {
    seconds: f64,
    /// CPU seconds of the driving side.
    cpu: f64,
    /// Its peak memory.
    peak: u64,
}

struct Options {
    hosts: usize,
    rounds: usize,
    forks: usize,
    at_once: usize,
    helpers: Option<PathBuf>,
    /// Without Ansible.
    alone: bool,
    json: PathBuf,
}

fn options() -> Result<Options> {
    let mut options = Options {
        hosts: 60,
        rounds: 3,
        forks: 32,
        at_once: 32,
        helpers: None,
        alone: false,
        json: PathBuf::from("target/bench-ansible.json"),
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().with_context(|| format!("{argument} needs a value"));
        match argument.as_str() {
            "--hosts" => options.hosts = value()?.parse()?,
            "--rounds" => options.rounds = value()?.parse()?,
            "--forks" => options.forks = value()?.parse()?,
            "--at-once" => options.at_once = value()?.parse()?,
            "--helpers" => options.helpers = Some(value()?.into()),
            "--json" => options.json = value()?.into(),
            "--alone" => options.alone = true,
            "--quick" => (options.hosts, options.rounds) = (20, 1),
            // Cargo passes it to every bench.
            "--bench" => {}
            other => bail!(
                "what is {other}? --hosts N, --rounds N, --forks N, --at-once N, --helpers FOLDER, --json FILE, --alone, --quick"
            ),
        }
    }
    Ok(options)
}

/// The rows of both sides: name, all runs.
type Rows = Vec<(&'static str, Vec<Run>)>;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    // The measured processes run nothing else.
    match arguments.next().as_deref() {
        Some("--drive") => return runtime.block_on(ours::drive(Path::new(&arguments.next().context("no file")?))),
        Some("--operate") => {
            return runtime.block_on(operator::operate(Path::new(&arguments.next().context("no file")?)));
        }
        _ => {}
    }
    let options = options()?;
    if !rooted()? {
        bail!("the hosts of this benchmark have file systems of their own: only root can give them that");
    }
    let machine = machine::describe("cargo bench -p fleetwright-machines --bench ansible")?;
    let folder = tempfile::tempdir()?;
    let work = Work::new(folder.path())?;
    let keys = Keys::new(folder.path())?;
    let helpers = match &options.helpers {
        Some(folder) => folder.clone(),
        None => helper(&folder.path().join("helpers"))?,
    };
    let playbook = Ansible { folder: folder.path(), forks: options.forks };

    let (mut theirs, mut mine, mut whole): (Rows, Rows, Rows) = (vec![], vec![], vec![]);
    let mut looks = Vec::new();
    let add = |rows: &mut Rows, name: &'static str, runs: Vec<Run>| {
        for run in &runs {
            eprintln!("bench: {name}: {:.2} s, {:.2} s CPU", run.seconds, run.cpu);
        }
        match rows.iter_mut().find(|(known, _)| *known == name) {
            Some((_, all)) => all.extend(runs),
            None => rows.push((name, runs)),
        }
    };
    for round in 1..=options.rounds {
        if !options.alone {
            eprintln!("bench: round {round} of {}: {} hosts for Ansible", options.rounds, options.hosts);
            let hosts = Hosts::start(options.hosts, &keys)?;
            playbook.prepare(hosts.addresses(), &keys)?;
            add(&mut theirs, "cold", vec![playbook.run(true)?]);
            work::check(&hosts.addresses()[0], &keys, "bench-0")?;
            add(&mut theirs, "unchanged", vec![playbook.run(false)?]);
            playbook.forget();
            add(&mut theirs, "unchanged, new connections", vec![playbook.run(false)?]);
            playbook.forget();
            drop(hosts);
        }

        eprintln!("bench: round {round} of {}: {} hosts for Fleetwright", options.rounds, options.hosts);
        let hosts = Hosts::start(options.hosts, &keys)?;
        let repeats = 5;
        let measured =
            ours::measure(folder.path(), hosts.addresses(), &keys, &work, &helpers, (options.at_once, repeats))?;
        work::check(&hosts.addresses()[options.hosts - 1], &keys, &format!("bench-{}", options.hosts - 1))?;
        add(&mut mine, "cold", vec![measured.cold]);
        add(&mut mine, "unchanged", measured.kept);
        add(&mut mine, "unchanged, new connections", measured.anew);
        drop(hosts);

        eprintln!("bench: round {round} of {}: {} hosts for the whole operator", options.rounds, options.hosts);
        let hosts = Hosts::start(options.hosts, &keys)?;
        let measuring = operator::measure(folder.path(), hosts.addresses(), &keys, &work, &helpers, options.at_once);
        let measured = runtime.block_on(measuring)?;
        work::check(&hosts.addresses()[0], &keys, "bench-0")?;
        add(&mut whole, "cold", vec![measured.cold]);
        add(&mut whole, "unchanged, new connections", vec![measured.anew]);
        looks.push(measured.look * 1000.0);
    }
    report(&options, &machine, (&mine, &whole, median(looks)), &theirs)
}

fn rooted() -> Result<bool> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    Ok(status
        .lines()
        .find_map(|line| line.strip_prefix("Uid:"))
        .is_some_and(|ids| ids.split_whitespace().nth(1) == Some("0")))
}

/// Builds the helper as it is released.
fn helper(into: &Path) -> Result<PathBuf> {
    eprintln!("bench: building the helper");
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let status =
        Command::new(root.join("hack/helper.sh")).arg(into).stdout(Stdio::null()).status().context("hack/helper.sh")?;
    if !status.success() {
        bail!("hack/helper.sh failed");
    }
    Ok(into.to_owned())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

fn report(options: &Options, machine: &Value, (mine, whole, look): (&Rows, &Rows, f64), theirs: &Rows) -> Result<()> {
    let hosts = options.hosts as f64;
    let of = |runs: &[Run], value: &dyn Fn(&Run) -> f64| median(runs.iter().map(value).collect());
    let rate = |run: &Run| hosts / run.seconds;
    let cpu = |run: &Run| run.cpu * 1000.0 / hosts;
    let peak = |rows: &Rows| {
        rows.iter().flat_map(|(_, runs)| runs).map(|run| run.peak).max().unwrap_or_default() as f64 / 1_048_576.0
    };
    let others = |name: &str| {
        theirs.iter().find(|(other, _)| *other == name).map(|(_, runs)| runs.as_slice()).unwrap_or_default()
    };
    let mut rows = Vec::new();
    for (side, all) in [("", mine), ("operator, ", whole)] {
        for (name, runs) in all {
            let (ours, theirs) = (runs.as_slice(), others(name));
            rows.push((format!("{side}{name}: hosts"), "/s", of(ours, &rate), of(theirs, &rate), true));
            let what = format!("{side}{name}: control side, each host");
            rows.push((what, "ms CPU", of(ours, &cpu), of(theirs, &cpu), false));
        }
    }
    rows.push((
        "operator, unchanged: control side, each host".into(),
        "ms CPU",
        look,
        of(others("unchanged"), &cpu),
        false,
    ));
    rows.push(("control side: memory at most".into(), "MiB", peak(mine), peak(theirs), false));
    rows.push(("operator: memory at most".into(), "MiB", peak(whole), peak(theirs), false));

    println!("{}; {}\n", machine::line(machine), ansible_version());
    println!(
        "{} hosts, {} at once, Ansible with {} forks; medians of {} rounds\n",
        options.hosts, options.at_once, options.forks, options.rounds
    );
    println!("| what | unit | Fleetwright | Ansible | times better |\n|---|---|--:|--:|--:|");
    let mut values = Vec::new();
    for (what, unit, ours, theirs, more_is_better) in rows {
        let ratio = if more_is_better { ours / theirs } else { theirs / ours };
        if options.alone {
            println!("| {what} | {unit} | {} | – | – |", format_number(ours));
        } else {
            println!(
                "| {what} | {unit} | {} | {} | {}× |",
                format_number(ours),
                format_number(theirs),
                format_number(ratio)
            );
        }
        values.push(json!({"what": what, "unit": unit, "fleetwright": ours, "ansible": theirs, "ratio": ratio}));
    }
    let all = json!({"machine": machine, "ansible": ansible_version(), "hosts": options.hosts, "rounds": options.rounds, "rows": values});
    measure::write(&options.json, &all)
}

fn ansible_version() -> String {
    let out = Command::new("ansible-playbook").arg("--version").output().map(|out| out.stdout).unwrap_or_default();
    String::from_utf8_lossy(&out).lines().next().unwrap_or("no Ansible").to_owned()
}
