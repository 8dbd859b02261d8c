//! Counts calls per pass and per object, and checks them against a budget.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fleetwright_kit::{Budget, PassRecord};

/// The counted calls of one pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CountedPass {
    /// The name of the controller.
    pub controller: String,
    /// The key of the object.
    pub object: String,
    /// The number of read calls.
    pub reads: u32,
    /// The number of write calls.
    pub writes: u32,
    /// A short description of the outcome.
    pub outcome: String,
}

impl From<&PassRecord> for CountedPass {
    fn from(record: &PassRecord) -> Self {
        let ending = record.ending.as_str();
        let outcome = record.reason.map_or(ending.to_owned(), |reason| format!("{ending} ({} {reason})", record.step));
        Self {
            controller: record.controller.to_owned(),
            object: record.key.to_string(),
            reads: record.reads,
            writes: record.writes,
            outcome,
        }
    }
}

impl fmt::Display for CountedPass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { controller, object, reads, writes, outcome } = self;
        write!(f, "{controller} {object}: {outcome}, {reads} reads, {writes} writes")
    }
}

/// Collects passes; cheap to clone, clones share them.
#[derive(Clone, Default)]
pub struct PassCounter {
    passed: Arc<Mutex<Vec<CountedPass>>>,
}

/// The sums over the passes of one controller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ControllerTotals {
    /// The number of passes.
    pub passes: usize,
    /// The number of all reads.
    pub reads: u64,
    /// The number of all writes.
    pub writes: u64,
    /// The highest number of reads in one pass.
    pub most_reads: u32,
    /// The highest number of writes in one pass.
    pub most_writes: u32,
    /// The highest sum of calls over all passes of one object.
    pub most_of_an_object: u64,
}

impl PassCounter {
    /// Records a pass.
    pub fn pass(&self, passed: CountedPass) {
        self.lock().push(passed);
    }

    /// The number of recorded passes.
    pub fn passes(&self) -> usize {
        self.lock().len()
    }

    /// The passes after the first `mark`.
    pub fn since(&self, mark: usize) -> Vec<CountedPass> {
        self.lock().get(mark..).unwrap_or_default().to_vec()
    }

    /// The last passes, a line each.
    pub fn tail(&self, count: usize) -> String {
        let passed = self.lock();
        let lines: Vec<_> = passed[passed.len().saturating_sub(count)..].iter().map(ToString::to_string).collect();
        lines.join("\n")
    }

    /// The totals by controller.
    pub fn sums(&self) -> BTreeMap<String, ControllerTotals> {
        let mut sums: BTreeMap<String, ControllerTotals> = BTreeMap::new();
        let mut objects: BTreeMap<(String, String), u64> = BTreeMap::new();
        for passed in self.lock().iter() {
            let sum = sums.entry(passed.controller.clone()).or_default();
            sum.passes += 1;
            sum.reads += u64::from(passed.reads);
            sum.writes += u64::from(passed.writes);
            sum.most_reads = sum.most_reads.max(passed.reads);
            sum.most_writes = sum.most_writes.max(passed.writes);
            let calls = objects.entry((passed.controller.clone(), passed.object.clone())).or_default();
            *calls += u64::from(passed.reads + passed.writes);
            sum.most_of_an_object = sum.most_of_an_object.max(*calls);
        }
        sums
    }

    /// A table with a line for each controller, its most expensive pass beside its budget.
    pub fn table(&self, budgets: &[(&str, Budget)]) -> String {
        let mut table = format!(
            "{:<24} {:>7} {:>7} {:>7} {:>16} {:>16} {:>12}\n",
            "controller", "passes", "reads", "writes", "most reads/pass", "most writes/pass", "most/object"
        );
        for (name, sum) in self.sums() {
            let budget = budgets.iter().find(|(controller, _)| *controller == name).map(|(_, budget)| budget);
            let of = |most: u32, of: Option<u32>| of.map_or(format!("{most} of ?"), |of| format!("{most} of {of}"));
            let reads = of(sum.most_reads, budget.map(|budget| budget.reads));
            let writes = of(sum.most_writes, budget.map(|budget| budget.writes));
            let ControllerTotals { passes, reads: all_reads, writes: all_writes, most_of_an_object, .. } = sum;
            let _ = writeln!(
                table,
                "{name:<24} {passes:>7} {all_reads:>7} {all_writes:>7} {reads:>16} {writes:>16} {most_of_an_object:>12}"
            );
        }
        table
    }

    /// Checks that no pass made more calls than its controller declares, and that every controller declares a budget.
    ///
    /// # Errors
    /// Names the first pass over its budget.
    pub fn check_budgets(&self, budgets: &[(&str, Budget)]) -> Result<(), String> {
        for passed in self.lock().iter() {
            let Some((_, budget)) = budgets.iter().find(|(controller, _)| *controller == passed.controller) else {
                return Err(format!("{passed}: no budget was given for {}", passed.controller));
            };
            if passed.reads > budget.reads || passed.writes > budget.writes {
                return Err(format!(
                    "{passed}: more than the budget of {} reads and {} writes",
                    budget.reads, budget.writes
                ));
            }
        }
        Ok(())
    }

    /// Checks that the passes after the first `mark` made no calls: without a change, nothing is written.
    ///
    /// # Errors
    /// Names the first pass with calls.
    pub fn check_no_calls_since(&self, mark: usize) -> Result<(), String> {
        match self.since(mark).iter().find(|passed| passed.reads + passed.writes > 0) {
            Some(passed) => Err(format!("{passed}: nothing had changed")),
            None => Ok(()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<CountedPass>> {
        self.passed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed(object: &str, reads: u32, writes: u32) -> CountedPass {
        CountedPass { controller: "c".into(), object: object.into(), reads, writes, outcome: "done".into() }
    }

    #[test]
    fn the_most_expensive_pass_is_held_to_the_budget() {
        let pass_counter = PassCounter::default();
        pass_counter.pass(passed("a", 0, 1));
        pass_counter.pass(passed("a", 1, 2));
        pass_counter.pass(passed("b", 0, 0));
        let sums = pass_counter.sums();
        let expected =
            ControllerTotals { passes: 3, reads: 1, writes: 3, most_reads: 1, most_writes: 2, most_of_an_object: 4 };
        assert_eq!(sums["c"], expected);
        assert!(pass_counter.check_budgets(&[("c", Budget { reads: 1, writes: 2 })]).is_ok());
        let refused = pass_counter.check_budgets(&[("c", Budget { reads: 1, writes: 1 })]).unwrap_err();
        assert!(["c a:", "2 writes", "1 writes"].iter().all(|part| refused.contains(part)), "{refused}");
        assert!(pass_counter.check_budgets(&[]).is_err(), "a controller without a budget must not pass");
        assert!(pass_counter.table(&[("c", Budget { reads: 1, writes: 2 })]).contains("2 of 2"));
    }

    #[test]
    fn a_pass_that_calls_although_nothing_changed_is_named() {
        let pass_counter = PassCounter::default();
        pass_counter.pass(passed("a", 0, 1));
        let mark = pass_counter.passes();
        pass_counter.pass(passed("a", 0, 0));
        assert!(pass_counter.check_no_calls_since(mark).is_ok());
        pass_counter.pass(passed("b", 0, 1));
        assert!(pass_counter.check_no_calls_since(mark).unwrap_err().starts_with("c b:"));
    }
}
