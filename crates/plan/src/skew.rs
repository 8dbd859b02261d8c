//! The version skew between kubelets and an API server.
//!
//! Kubernetes' own policy: a kubelet is never newer than its API server, and at most three minor versions older.

/// The most minor versions that a kubelet may be older than its API server.
pub const MAX_KUBELET_SKEW: u32 = 3;

/// A minor version of Kubernetes: `(1, 36)`.
pub type Minor = (u32, u32);

/// An unsupported skew between a kubelet and an API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Skew {
    /// The kubelet has a newer minor version.
    TooNew,
    /// The kubelet is more than [`MAX_KUBELET_SKEW`] minor versions older.
    TooOld,
}

impl Skew {
    /// The reason for conditions.
    pub fn reason(self) -> &'static str {
        match self {
            Self::TooNew => "KubeletTooNew",
            Self::TooOld => "KubeletTooOld",
        }
    }
}

/// The minor version of a version such as `v1.36.4` or `1.36`; none if it is not one of Kubernetes.
pub fn minor(version: &str) -> Option<Minor> {
    let mut numbers = version.strip_prefix('v').unwrap_or(version).split(['.', '-', '+']);
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// The minor version that an API server behaves as, from its `major` and `minor` and those that it emulates: while a
/// new version emulates the old one, it can
/// still be rolled back.
pub fn server(is: [&str; 2], emulates: Option<[&str; 2]>) -> Option<Minor> {
    let minor = |[major, minor]: [&str; 2]| {
        // Some distributions write `36+`.
        let number = |text: &str| text.trim_end_matches('+').parse::<u32>().ok();
        number(major).zip(number(minor))
    };
    minor(is).into_iter().chain(emulates.and_then(minor)).min()
}

/// The unsupported skew of a kubelet to an API server of that minor version; none if it is supported, or the kubelet's version cannot be parsed.
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
