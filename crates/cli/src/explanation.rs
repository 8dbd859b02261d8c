//! Explanations, plans and trees as text. Their data is in `fleetwright_plan::explain`.

pub(crate) mod plan;
pub(crate) mod tree;

use std::fmt::Write as _;

use fleetwright_api::{Condition, Status};
use fleetwright_plan::explain::{Action, Check, Explanation, Group, State, Subject, Verdict};
use jiff::Timestamp;

use crate::terminal_text::{ago, cut, line, table};

/// The maximum number of listed actions.
const MAX_ACTIONS: usize = 12;
/// The maximum length of a message in characters.
const MAX_MESSAGE: usize = 600;

/// The explanation as text that fits a screen: the answer first, then the failing checks, then what to do.
pub(crate) fn text(explanation: &Explanation, now: Timestamp) -> String {
    let mut out = headline(explanation, now);
    for group in [
        Group::Progress,
        Group::Conditions,
        Group::Replicas,
        Group::Gates,
        Group::Node,
        Group::SafetyNet,
        Group::Reports,
        Group::Packages,
        Group::Host,
    ] {
        let checks: Vec<_> = explanation.group(group).collect();
        if !checks.is_empty() {
            let rows: Vec<_> = checks.iter().map(|check| row(check, now)).collect();
            let name = checks.iter().find_map(|check| check.rule.as_deref()).filter(|_| group == Group::Node);
            let title = name.map_or_else(|| title(group).to_owned(), |name| line(&name.replace('/', " ")));
            let _ = write!(out, "\n{title}:\n{}", table(&rows));
        }
    }
    if !explanation.actions.is_empty() {
        out.push_str("\nWhat to do:\n");
        for action in explanation.actions.iter().take(MAX_ACTIONS) {
            let _ = writeln!(out, "  {}", action_line(action));
        }
        if explanation.actions.len() > MAX_ACTIONS {
            let _ = writeln!(out, "  … and {} more: -o json", explanation.actions.len() - MAX_ACTIONS);
        }
    }
    out
}

fn headline(explanation: &Explanation, now: Timestamp) -> String {
    let Explanation { object: Subject { kind, name, .. }, verdict, .. } = explanation;
    let Verdict { condition, status, reason, message, since, .. } = verdict;
    let what = match status {
        Status::True => format!("is {}", condition.to_lowercase()),
        Status::False => format!("is NOT {}", condition.to_lowercase()),
        Status::Unknown => format!("may or may not be {}", condition.to_lowercase()),
    };
    let since = since.map(|since| format!(", for {}", ago(since, now))).unwrap_or_default();
    let mut out = format!("{}/{name} {what}: {}{since}\n", kind.to_lowercase(), line(reason));
    let _ = writeln!(out, "  {}", line(message));
    match (&verdict.last_recorded, verdict.recorded) {
        (Some(Condition { status, reason, .. }), _) => {
            let _ = writeln!(
                out,
                "  The operator last wrote {} ({}) and has not reconciled since: check that it is running",
                status.as_str(),
                line(reason)
            );
        }
        (None, false) => out.push_str("  The operator has not written the condition yet: check that it is running\n"),
        (None, true) => {}
    }
    if let Some(phase) = explanation.phase.as_ref().filter(|phase| *phase != "Ready") {
        let _ = writeln!(out, "  Phase {phase}");
    }
    if explanation.paused {
        out.push_str("  spec.paused is true: the operator changes nothing\n");
    }
    out
}

fn title(group: Group) -> &'static str {
    match group {
        Group::Progress => "Progress",
        Group::Conditions => "Problems",
        Group::Replicas => "Replicas",
        Group::Gates => "Gates",
        Group::Node => "Node",
        Group::SafetyNet => "Safety net",
        Group::Reports => "Invalid reports",
        Group::Packages => "Packages",
        Group::Host => "Host",
    }
}

fn row(check: &Check, now: Timestamp) -> Vec<String> {
    let mark = match check.state {
        State::Failing => '✗',
        State::Waiting => '…',
        State::Unknown => '?',
        State::Passing => '✓',
    };
    let mut columns = vec![format!("  {mark} {}", line(&check.subject))];
    let mut text = String::new();
    match (check.group, &check.owner, &check.rule) {
        (Group::Gates, Some(owner), Some(rule)) => {
            let _ = write!(text, "{}, of {}: ", line(owner), line(&rule.replace('/', " ")));
        }
        (Group::Replicas, Some(owner), _) => columns.push(line(owner)),
        (Group::SafetyNet, _, Some(rule)) => columns.push(line(&rule.replace('/', " "))),
        _ => {}
    }
    if check.group == Group::Conditions || check.group == Group::Host {
        // All listed checks are False.
        columns.push(line(&check.reason));
        columns.extend(check.since.map(|since| format!("for {}", ago(since, now))));
    } else {
        let mut value = line(&check.value);
        if check.group == Group::Progress
            && let Some(limit) = check.limit.as_ref().filter(|limit| **limit != check.value)
        {
            let _ = write!(value, ", {} is requested", line(limit));
        }
        if let Some(since) = check.since {
            let _ = write!(value, " for {}", ago(since, now));
        }
        if check.group == Group::Node
            && let Some(owner) = &check.owner
        {
            let _ = write!(value, " by {}", line(owner));
        }
        text.push_str(value.trim_start());
        if !check.reason.is_empty() && !text.is_empty() {
            let _ = write!(text, ": {}", line(&check.reason));
        }
    }
    if !check.message.is_empty() {
        let separator = if text.is_empty() { "" } else { ": " };
        let _ = write!(text, "{separator}{}", cut(&line(&check.message), MAX_MESSAGE));
    }
    if check.group == Group::Gates
        && let (Some(until), Some(limit)) = (check.until, &check.limit)
    {
        let _ = match (check.state, until > now) {
            (State::Failing, true) => write!(text, "; tolerated for another {}", ago(now, until)),
            (State::Failing, false) => write!(text, "; exceeds tolerateFor of {limit}"),
            (_, true) => write!(text, "; must hold for another {}", ago(now, until)),
            (_, false) => Ok(()),
        };
    }
    columns.push(text);
    columns
}

fn action_line(action: &Action) -> String {
    match &action.command {
        Some(command) if action.description.is_empty() => line(command),
        Some(command) => format!("{}    # {}", line(command), line(&action.description)),
        None => line(&action.description),
    }
}
