//! Decides the fault of a call: a pure function of the seed, the call, and the number of earlier calls like it.

use std::time::Duration;

use crate::Call;

/// The rate of each fault, as a share of the calls that it can apply to.
#[derive(Clone, Debug, PartialEq)]
pub struct FaultRates {
    /// The request is lost before the server.
    pub request_lost: f64,
    /// The server carries out the call; its answer is lost.
    pub answer_lost: f64,
    /// The request or the answer is late.
    pub late: f64,
    /// 409 with the reason Conflict, for writes.
    pub conflict: f64,
    /// 410, for watches and for lists that continue from a version.
    pub expired: f64,
    /// 429 with Retry-After.
    pub too_many: f64,
    /// 500, 502, 503 or 504; the server may have carried out the call.
    pub server_error: f64,
    /// An older answer than the one before, for reads.
    pub stale: f64,
    /// A watch ends early, possibly in the middle of a line.
    pub cut: f64,
    /// The events of a watch are late.
    pub slow: f64,
    /// The upper bound of all delays.
    pub max_delay: Duration,
    /// The number of calls of each kind to each object that can meet a fault: it is limited, so that every run comes to an end.
    pub calls: u32,
}

impl FaultRates {
    /// No faults, as a base for struct updates.
    pub fn none() -> Self {
        Self {
            request_lost: 0.0,
            answer_lost: 0.0,
            late: 0.0,
            conflict: 0.0,
            expired: 0.0,
            too_many: 0.0,
            server_error: 0.0,
            stale: 0.0,
            cut: 0.0,
            slow: 0.0,
            max_delay: Duration::from_secs(90),
            calls: 12,
        }
    }

    /// All kinds of faults: a third of the calls meet one.
    pub fn mixed() -> Self {
        Self {
            request_lost: 0.04,
            answer_lost: 0.06,
            late: 0.04,
            conflict: 0.04,
            expired: 0.04,
            too_many: 0.04,
            server_error: 0.06,
            stale: 0.08,
            cut: 0.15,
            slow: 0.10,
            ..Self::none()
        }
    }
}

/// The fault of one call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The request is not sent. The caller gets no answer, or a broken connection.
    RequestLost {
        /// Without an error: the call hangs.
        silent: bool,
    },
    /// The request is sent; its answer is dropped.
    AnswerLost {
        /// Without an error: the call hangs.
        silent: bool,
    },
    /// The request is sent with this delay, even if the caller has given up by then.
    LateRequest(Duration),
    /// The answer is delayed by this time.
    LateAnswer(Duration),
    /// 409.
    Conflict,
    /// 410, as the answer or as the first event of a watch.
    Expired {
        /// Whether the error is an event of the watch.
        event: bool,
    },
    /// 429.
    TooMany {
        /// The value of Retry-After.
        seconds: u64,
    },
    /// 5xx.
    ServerError {
        /// The status.
        code: u16,
        /// Whether the server has carried out the call.
        done: bool,
    },
    /// The answer of an earlier read.
    Stale {
        /// The number of reads back.
        back: usize,
    },
    /// A watch that ends after a number of events.
    Cut {
        /// The number of events before the end.
        events: usize,
        /// Whether it ends in the middle of the next line.
        inside: bool,
        /// Whether it ends with an error.
        broken: bool,
    },
    /// A watch whose events are each delayed by this time.
    Slow(Duration),
}

impl Fault {
    /// The name of the fault in a summary.
    pub fn name(&self) -> &'static str {
        match self {
            Self::RequestLost { .. } => "request lost",
            Self::AnswerLost { .. } => "answer lost",
            Self::LateRequest(_) => "late request",
            Self::LateAnswer(_) => "late answer",
            Self::Conflict => "409",
            Self::Expired { .. } => "410",
            Self::TooMany { .. } => "429",
            Self::ServerError { .. } => "5xx",
            Self::Stale { .. } => "stale read",
            Self::Cut { .. } => "watch cut",
            Self::Slow(_) => "watch slow",
        }
    }
}

/// The fault of the `nth` call of this kind to this object, counted from 0. `from_version`: the list or watch continues from an older version
/// or page.
pub fn decide(seed: u64, rates: &FaultRates, call: &Call, from_version: bool, nth: u32) -> Option<Fault> {
    if nth >= rates.calls {
        return None;
    }
    let mut draw = Draw::new(seed, call, nth);
    let watch = call.verb == "watch";
    let read = matches!(call.verb, "get" | "list");
    // Each fault with its rate and whether it applies to this call.
    let troubles = [
        (rates.request_lost, true),
        (rates.answer_lost, true),
        (rates.late, true),
        (rates.conflict, call.writes()),
        (rates.expired, watch || (call.verb == "list" && from_version)),
        (rates.too_many, true),
        (rates.server_error, true),
        (rates.stale, read || watch),
        (rates.cut, watch),
        (rates.slow, watch),
    ];
    let mut at = draw.share();
    let struck = troubles.iter().position(|(rate, possible)| {
        let rate = if *possible { *rate } else { 0.0 };
        let strikes = at < rate;
        at -= rate;
        strikes
    })?;
    // Only TCP keep-alive would notice a watch that is never answered, and the rig does not test that.
    let silent = draw.coin() && !watch;
    let while_ = rates.max_delay.mul_f64(draw.share());
    Some(match struck {
        0 => Fault::RequestLost { silent },
        1 => Fault::AnswerLost { silent },
        2 if draw.coin() => Fault::LateRequest(while_),
        2 => Fault::LateAnswer(while_),
        3 => Fault::Conflict,
        4 => Fault::Expired { event: watch && draw.coin() },
        5 => Fault::TooMany { seconds: 1 + draw.below(20) },
        6 => {
            let code = [500, 502, 503, 504][draw.below(4) as usize];
            Fault::ServerError { code, done: draw.coin() }
        }
        7 => Fault::Stale { back: 1 + draw.below(3) as usize },
        8 => Fault::Cut { events: draw.below(6) as usize, inside: draw.coin(), broken: draw.coin() },
        _ => Fault::Slow(while_),
    })
}

/// A sequence of random numbers that is derived from a call.
struct Draw(u64);

impl Draw {
    fn new(seed: u64, call: &Call, nth: u32) -> Self {
        let words = [call.verb, &call.resource, &call.subresource, &call.namespace, &call.name];
        // FNV-1a; a zero byte ends each word.
        let hash = words
            .iter()
            .flat_map(|word| word.bytes().chain([0]))
            .chain(nth.to_le_bytes())
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
        let mut draw = Self(seed);
        let salt = draw.next();
        Self(hash ^ salt)
    }

    /// Splitmix64.
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number in the range 0 (inclusive) to 1 (exclusive).
    fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn coin(&mut self) -> bool {
        self.next() & 1 == 1
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(verb: &'static str, name: &str) -> Call {
        Call {
            verb,
            resource: "configmaps".into(),
            subresource: String::new(),
            namespace: "a".into(),
            name: name.into(),
            selected: String::new(),
            agent: String::new(),
        }
    }

    fn run(seed: u64, verb: &'static str) -> Vec<Option<Fault>> {
        let rates = FaultRates { calls: 2000, ..FaultRates::mixed() };
        (0..2000).map(|nth| decide(seed, &rates, &call(verb, "b"), true, nth)).collect()
    }

    #[test]
    fn one_seed_is_one_run_and_another_is_another() {
        assert_eq!(run(7, "patch"), run(7, "patch"));
        assert_ne!(run(7, "patch"), run(8, "patch"));
        assert_ne!(run(7, "patch"), run(7, "update"));
    }

    #[test]
    fn every_trouble_strikes_what_it_can_strike() {
        let names = |verb| {
            let mut names: Vec<_> = run(1, verb).iter().flatten().map(Fault::name).collect();
            names.sort_unstable();
            names.dedup();
            names
        };
        let always = ["429", "5xx", "answer lost", "late answer", "late request", "request lost"];
        let with = |more: &[&'static str]| {
            let mut names = [always.as_slice(), more].concat();
            names.sort_unstable();
            names
        };
        assert_eq!(names("get"), with(&["stale read"]));
        assert_eq!(names("list"), with(&["410", "stale read"]));
        assert_eq!(names("patch"), with(&["409"]));
        assert_eq!(names("watch"), with(&["410", "stale read", "watch cut", "watch slow"]));
    }

    #[test]
    fn trouble_ends_so_that_every_run_does() {
        let rates = FaultRates { request_lost: 1.0, calls: 3, ..FaultRates::none() };
        let struck = |nth| decide(1, &rates, &call("get", "b"), false, nth).is_some();
        assert_eq!([0, 1, 2, 3, 4].map(struck), [true, true, true, false, false]);
    }
}
