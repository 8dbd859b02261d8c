//! Upgrade paths between package versions, without the state of a cluster.

use fleetwright_api::ClusterPackageVersionSpec;

/// The fields of a package version that decide about paths to it and from it.
#[derive(Clone, Copy, Debug)]
pub struct VersionNode<'a> {
    /// Name of the package version.
    pub name: &'a str,
    /// Version of Kubernetes.
    pub kubernetes: &'a str,
    /// Allowed sources of an upgrade; the same minor and the one below if empty.
    pub upgrade_from: &'a [String],
    /// Allowed targets of a rollback; the same minor and, while it is emulated, the one below if empty.
    pub rollback_to: &'a [String],
}

impl<'a> VersionNode<'a> {
    /// The package version of that name.
    pub fn of(name: &'a str, spec: &'a ClusterPackageVersionSpec) -> Self {
        let ClusterPackageVersionSpec { kubernetes, upgrade_from, rollback_to, .. } = spec;
        Self { name, kubernetes, upgrade_from, rollback_to }
    }

    /// A deleted package version, of which only the version is known.
    pub fn gone(name: &'a str, kubernetes: &'a str) -> Self {
        Self { name, kubernetes, upgrade_from: &[], rollback_to: &[] }
    }

    /// Its minor, such as `1.36`.
    pub fn minor(&self) -> &'a str {
        let second = self.kubernetes.match_indices('.').nth(1).map_or(self.kubernetes.len(), |(at, _)| at);
        &self.kubernetes[..second]
    }

    /// The version as numbers.
    fn numbers(&self) -> [u32; 3] {
        let mut numbers = self.kubernetes.split('.').map(|number| number.parse().unwrap_or(0));
        [(); 3].map(|()| numbers.next().unwrap_or(0))
    }

    /// Whether it is of an older version of Kubernetes than the other.
    pub fn is_older_than(&self, other: &Self) -> bool {
        self.numbers() < other.numbers()
    }

    /// Whether a list contains its name or its minor.
    fn is_in(&self, list: &[String]) -> bool {
        list.iter().any(|entry| entry == self.name || entry == self.minor())
    }
}

/// Why there is no path from one package version to another.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct NoUpgradePath {
    /// Kind of the obstacle.
    pub why: NoUpgradePathReason,
    /// The obstacle and a possible path, for people.
    pub message: String,
}

/// Kind of obstacle on a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoUpgradePathReason {
    /// An upgrade to an older version.
    Older,
    /// A rollback to a newer version.
    Newer,
    /// More than one minor at a time.
    TooFar,
    /// One of the package versions does not allow it.
    NotAllowed,
    /// The older minor is no longer emulated.
    NotEmulated,
}

fn no_way(why: NoUpgradePathReason, message: String) -> Result<(), NoUpgradePath> {
    Err(NoUpgradePath { why, message })
}

/// Checks whether an upgrade is possible from one to the other.
///
/// # Errors
/// There is no path; the error has the reason and a possible path.
pub fn forward(from: &VersionNode<'_>, to: &VersionNode<'_>) -> Result<(), NoUpgradePath> {
    let (is, asked) = (from.numbers(), to.numbers());
    let about = about(from, to);
    if to.is_older_than(from) {
        return no_way(NoUpgradePathReason::Older, format!("{about}: the target is older, so this is a rollback"));
    }
    if is[0] != asked[0] || asked[1] - is[1] > 1 {
        let next = format!("{}.{}", is[0], is[1] + 1);
        return no_way(
            NoUpgradePathReason::TooFar,
            format!(
                "{about}: a control plane is upgraded by one minor at a time; upgrade to a package version of {next} first"
            ),
        );
    }
    if !to.upgrade_from.is_empty() && !from.is_in(to.upgrade_from) {
        let (to, allowed) = (to.name, to.upgrade_from.join(", "));
        return no_way(
            NoUpgradePathReason::NotAllowed,
            format!(
                "{about}: spec.upgradeFrom of {to} allows {allowed}; upgrade to one of these first, or create a package version that allows {}",
                from.name
            ),
        );
    }
    Ok(())
}

/// Checks whether a rollback is possible from one to the other that keeps every write. `emulates` is the older minor that the cluster emulates.
///
/// # Errors
/// There is no path; the error has the reason.
pub fn back(from: &VersionNode<'_>, to: &VersionNode<'_>, emulates: Option<&str>) -> Result<(), NoUpgradePath> {
    let (is, asked) = (from.numbers(), to.numbers());
    let about = about(from, to);
    if from.is_older_than(to) {
        return no_way(NoUpgradePathReason::Newer, format!("{about}: the target is newer, so this is an upgrade"));
    }
    if is[0] != asked[0] || is[1] - asked[1] > 1 {
        return no_way(
            NoUpgradePathReason::TooFar,
            format!("{about}: a control plane is rolled back by one minor at most, to the minor that it emulates"),
        );
    }
    if !from.rollback_to.is_empty() && !to.is_in(from.rollback_to) {
        let (from, allowed) = (from.name, from.rollback_to.join(", "));
        return no_way(
            NoUpgradePathReason::NotAllowed,
            format!("{about}: spec.rollbackTo of {from} allows {allowed}; roll back to one of these"),
        );
    }
    if is[1] != asked[1] && emulates != Some(to.minor()) {
        let minor = to.minor();
        return no_way(
            NoUpgradePathReason::NotEmulated,
            format!(
                "{about}: the cluster no longer emulates {minor}, so its datastore may hold data that {minor} cannot read, and a rollback could lose it"
            ),
        );
    }
    Ok(())
}

fn about(from: &VersionNode<'_>, to: &VersionNode<'_>) -> String {
    format!(
        "ClusterPackageVersion {} is Kubernetes {}, the cluster runs {} ({})",
        to.name, to.kubernetes, from.kubernetes, from.name
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|&word| word.to_owned()).collect()
    }

    #[test]
    fn an_upgrade_goes_by_one_minor_at_a_time_and_only_from_where_it_may() {
        let from = VersionNode::gone("k8s-1.36.4-r1", "1.36.4");
        for (kubernetes, well) in
            [("1.36.4", true), ("1.36.10", true), ("1.37.0", true), ("1.38.0", false), ("2.0.0", false)]
        {
            assert_eq!(forward(&from, &VersionNode::gone("to", kubernetes)).is_ok(), well, "{kubernetes}");
        }
        for (list, well) in [(&["1.36"][..], true), (&["k8s-1.36.4-r1"], true), (&["1.35", "k8s-1.36.4"], false)] {
            let list = words(list);
            let to = VersionNode { upgrade_from: &list, ..VersionNode::gone("to", "1.37.0") };
            assert_eq!(forward(&from, &to).is_ok(), well, "{list:?}");
        }
        let far = forward(&from, &VersionNode::gone("k8s-1.38.0", "1.38.0")).unwrap_err().to_string();
        assert!(far.contains("1.37 first"), "{far}");
        assert_eq!(forward(&from, &VersionNode::gone("old", "1.36.3")).unwrap_err().why, NoUpgradePathReason::Older);
    }

    #[test]
    fn going_back_across_a_minor_needs_its_emulation() {
        let from = VersionNode::gone("new", "1.37.1");
        let rollback_to = |kubernetes, emulates| back(&from, &VersionNode::gone("old", kubernetes), emulates);
        assert_eq!(rollback_to("1.37.0", None), Ok(()));
        assert_eq!(rollback_to("1.37.1", None), Ok(()), "another package of the same version");
        assert_eq!(rollback_to("1.36.4", Some("1.36")), Ok(()));
        assert_eq!(rollback_to("1.36.4", None).unwrap_err().why, NoUpgradePathReason::NotEmulated);
        assert_eq!(rollback_to("1.35.9", Some("1.36")).unwrap_err().why, NoUpgradePathReason::TooFar);
        assert_eq!(rollback_to("1.37.2", None).unwrap_err().why, NoUpgradePathReason::Newer);
        let list = words(&["1.37"]);
        let from = VersionNode { rollback_to: &list, ..from };
        let refused = back(&from, &VersionNode::gone("old", "1.36.4"), Some("1.36")).unwrap_err();
        assert_eq!(refused.why, NoUpgradePathReason::NotAllowed);
        assert!(refused.message.contains("spec.rollbackTo"), "{refused}");
    }
}
