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

/// The minor versions of an API server. While a new version emulates the old one, it can still be rolled back: then a kubelet must be compatible with both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerMinors {
    /// The minor that the API server behaves as.
    pub emulated: Minor,
    /// The minor of its program.
    pub program: Minor,
}

impl ServerMinors {
    /// From the `major` and `minor` of an API server and those that it emulates; none if it reports no version.
    pub fn of(is: [&str; 2], emulates: Option<[&str; 2]>) -> Option<Self> {
        let minor = |[major, minor]: [&str; 2]| {
            // Some distributions write `36+`.
            let number = |text: &str| text.trim_end_matches('+').parse::<u32>().ok();
            number(major).zip(number(minor))
        };
        let program = minor(is)?;
        let emulated = emulates.and_then(minor).map_or(program, |emulated| emulated.min(program));
        Some(Self { emulated, program })
    }
}

impl From<Minor> for ServerMinors {
    fn from(minor: Minor) -> Self {
        Self { emulated: minor, program: minor }
    }
}

/// The unsupported skew of a kubelet to an API server; none if it is supported, or the kubelet's version cannot be parsed.
pub fn skew(kubelet: &str, server: ServerMinors) -> Option<Skew> {
    let kubelet = minor(kubelet)?;
    if kubelet > server.emulated {
        return Some(Skew::TooNew);
    }
    let (major, newest) = server.program;
    (kubelet.0 < major || kubelet.1.saturating_add(MAX_KUBELET_SKEW) < newest).then_some(Skew::TooOld)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kubelet_must_be_compatible_with_the_emulated_minor_and_that_of_the_program() {
        assert_eq!(ServerMinors::of(["1", "37+"], None), Some((1, 37).into()));
        assert_eq!(ServerMinors::of(["1", "37"], Some(["", ""])), Some((1, 37).into()));
        assert_eq!(ServerMinors::of(["", ""], None), None);
        let server = ServerMinors::of(["1", "37"], Some(["1", "36"])).unwrap();
        assert_eq!(server, ServerMinors { emulated: (1, 36), program: (1, 37) });
        for (kubelet, expected) in
            [("1.37.0", Some(Skew::TooNew)), ("1.36.0", None), ("1.34.0", None), ("1.33.0", Some(Skew::TooOld))]
        {
            assert_eq!(skew(kubelet, server), expected, "{kubelet}");
        }
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
            assert_eq!(skew(kubelet, (1, 36).into()), expected, "{kubelet}");
        }
    }
}
