//! Which kubelets an API server supports.
//!
//! Kubernetes' own policy: a kubelet is never newer than its API server, and at most three minors older.

/// The most minors that a kubelet may be older than its API server.
pub const MAX_KUBELET_SKEW: u32 = 3;

/// A minor of Kubernetes: `(1, 36)`.
pub type Minor = (u32, u32);

/// How a kubelet does not fit to an API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Skew {
    /// It is of a newer minor.
    TooNew,
    /// It is more than [`MAX_KUBELET_SKEW`] minors older.
    TooOld,
}

impl Skew {
    /// The reason that conditions give.
    pub fn reason(self) -> &'static str {
        match self {
            Self::TooNew => "KubeletTooNew",
            Self::TooOld => "KubeletTooOld",
        }
    }
}

/// The minor of a version such as `v1.36.4` or `1.36`; none if it is not one of Kubernetes.
pub fn minor(version: &str) -> Option<Minor> {
    let mut numbers = version.strip_prefix('v').unwrap_or(version).split(['.', '-', '+']);
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// The minor that an API server behaves as, from its `major` and `minor` and those that it emulates: while a new one emulates the old, it can
/// still go back to it.
pub fn server(is: [&str; 2], emulates: Option<[&str; 2]>) -> Option<Minor> {
    let minor = |[major, minor]: [&str; 2]| {
        // Some distributions write `36+`.
        let number = |text: &str| text.trim_end_matches('+').parse::<u32>().ok();
        number(major).zip(number(minor))
    };
    minor(is).into_iter().chain(emulates.and_then(minor)).min()
}

/// How that kubelet does not fit to an API server of that minor; none if it does, or if its version cannot be read.
pub fn skew(kubelet: &str, server: Minor) -> Option<Skew> {
    let kubelet = minor(kubelet)?;
    if kubelet > server {
        return Some(Skew::TooNew);
    }
    (kubelet.0 < server.0 || kubelet.1.saturating_add(MAX_KUBELET_SKEW) < server.1).then_some(Skew::TooOld)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_emulates_an_older_minor_counts_as_that() {
        assert_eq!(server(["1", "37+"], None), Some((1, 37)));
        assert_eq!(server(["1", "37"], Some(["1", "36"])), Some((1, 36)));
        assert_eq!(server(["1", "37"], Some(["", ""])), Some((1, 37)));
        assert_eq!(server(["", ""], None), None);
    }

    #[test]
    fn a_kubelet_may_be_three_minors_older_and_never_newer() {
        for (kubelet, expected) in [
            ("v1.37.1", Some(Skew::TooNew)),
            ("1.36.9", None),
            ("1.33.0", None),
            ("1.32.11", Some(Skew::TooOld)),
            ("v1.36.4-gke.1", None),
            ("2.0.0", Some(Skew::TooNew)),
            ("stable", None),
        ] {
            assert_eq!(skew(kubelet, (1, 36)), expected, "{kubelet}");
        }
    }
}
