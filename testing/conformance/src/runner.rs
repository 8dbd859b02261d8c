use std::cell::RefCell;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use futures::{FutureExt, StreamExt, stream};

use crate::{Case, Ctx, Outcome, Report, ServerKind, Target};

/// The number of concurrent cases.
const AT_ONCE: usize = 8;
/// The timeout of a case.
const LIMIT: Duration = Duration::from_secs(120);

thread_local! {
    /// The message of the last panic on this thread. A case's panic is caught in the same poll, so on the same thread.
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// The selected cases and servers.
#[derive(Clone, Debug)]
pub struct Options {
    pub servers: Vec<ServerKind>,
    /// Only cases whose area or name holds one of these; all when empty.
    pub filters: Vec<String>,
}

impl Options {
    fn wants(&self, case: &Case) -> bool {
        let sentence = format!("{}::{} {}", case.area, case.name, case.sentence());
        self.filters.is_empty() || self.filters.iter().any(|filter| sentence.contains(filter.as_str()))
    }
}

/// Runs the cases on each server, one server after the other.
pub async fn run(cases: Vec<Case>, options: &Options) -> Result<Report> {
    let cases: Vec<Case> = cases.into_iter().filter(|case| options.wants(case)).collect();
    let mut report = Report::new(&cases, &options.servers);
    std::panic::set_hook(Box::new(|info| {
        let words = info.payload();
        let text = words.downcast_ref::<&str>().copied().or(words.downcast_ref::<String>().map(String::as_str));
        let text = text.unwrap_or("a panic without words");
        let place = info.location().map(ToString::to_string).unwrap_or_default();
        PANIC.set(Some(format!("{place}: {text}")));
    }));
    for kind in &options.servers {
        let started = Instant::now();
        let target = Arc::new(Target::start(*kind).await?);
        let mut failed = false;
        eprintln!("{kind}: ready in {:.1} s", started.elapsed().as_secs_f32());
        for disruptive in [false, true] {
            let chosen = cases.iter().enumerate().filter(|(_, case)| case.disruptive == disruptive);
            let attempts = chosen.map(|(number, case)| {
                let (case, target) = (*case, target.clone());
                async move { (number, attempt(case, number, target).await) }
            });
            let mut attempts = stream::iter(attempts).buffer_unordered(AT_ONCE);
            while let Some((number, outcome)) = attempts.next().await {
                if let Err(error) = &outcome.result {
                    failed = true;
                    eprintln!("{kind}: {}::{} failed\n  {}", cases[number].area, cases[number].name, indented(error));
                }
                report.add(number, *kind, outcome);
            }
        }
        eprintln!("{kind}: done in {:.1} s", started.elapsed().as_secs_f32());
        if let Some(target) = Arc::into_inner(target) {
            target.stop(failed).await;
        }
    }
    drop(std::panic::take_hook());
    Ok(report)
}

async fn attempt(case: Case, number: usize, target: Arc<Target>) -> Outcome {
    let started = Instant::now();
    let work = async {
        let ctx = Ctx::new(target, number).await?;
        (case.run)(ctx).await
    };
    let result = match tokio::time::timeout(LIMIT, AssertUnwindSafe(work).catch_unwind()).await {
        Ok(Ok(result)) => result,
        Ok(Err(_)) => Err(anyhow!(PANIC.take().unwrap_or_default())),
        Err(_) => Err(anyhow!("not done after {LIMIT:?}")),
    };
    Outcome { result: result.map_err(|error| format!("{error:#}")), took: started.elapsed() }
}

fn indented(text: &str) -> String {
    text.replace('\n', "\n  ")
}
