//! Objects in the notation of kubectl: `machine/x`, `ma/x`, `machines.fleetwright.io/x`, `machine x`.

use fleetwright_api::GROUP;
use kube::{Api, CustomResourceExt, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;

use crate::cluster::{Cluster, is_not_found};

/// Which object.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct TargetArgs {
    /// Object, as TYPE/NAME or TYPE NAME.
    #[arg(required = true, num_args = 1..=2, value_name = "TYPE/NAME")]
    target: Vec<String>,

    /// Namespace of the object. [default: that of the context, else fleet]
    #[arg(short, long, value_name = "NAMESPACE", value_parser = crate::install::namespace)]
    namespace: Option<String>,
}

impl TargetArgs {
    /// The name of the object, if it has this kind.
    ///
    /// # Errors
    /// It has another kind or no name; the error lists the allowed forms.
    pub(crate) fn name<K: CustomResourceExt>(&self) -> anyhow::Result<&str> {
        Ok(self.among(&[K::crd().spec.names])?.1)
    }

    /// The kind of the object among these, and its name.
    ///
    /// # Errors
    /// It has none of these kinds or no name; the error lists the allowed forms.
    pub(crate) fn among(&self, kinds: &[KindNames]) -> anyhow::Result<(usize, &str)> {
        let singular = |names: &KindNames| names.kind.to_lowercase();
        let written = |name: &str| {
            let each: Vec<_> = kinds.iter().map(|names| format!("{}/{name}", singular(names))).collect();
            format!("write {}", each.join(" or "))
        };
        let of = |word: &str| kinds.iter().position(|names| is_called(word, names));
        let (kind, name) = match self.target.as_slice() {
            [one] => one.split_once('/').ok_or_else(|| match of(one) {
                Some(kind) => anyhow::anyhow!("no name of a {}; {}", singular(&kinds[kind]), written("NAME")),
                None => anyhow::anyhow!("{one:?} has no type; {}", written(one)),
            })?,
            [kind, name] => (kind.as_str(), name.as_str()),
            _ => anyhow::bail!("no object given; {}", written("NAME")),
        };
        let Some(kind) = of(kind) else {
            anyhow::bail!("unsupported type {kind:?}; {}", written("NAME"));
        };
        if name.is_empty() || name.contains('/') {
            anyhow::bail!("{name:?} is not a name; write {}/NAME", singular(&kinds[kind]));
        }
        Ok((kind, name))
    }

    /// The namespace of the object.
    pub(crate) fn namespace<'a>(&'a self, cluster: &'a Cluster) -> &'a str {
        cluster.namespace_or(self.namespace.as_deref())
    }

    /// Reads the object.
    ///
    /// # Errors
    /// The object does not exist, or may not be read; the error names the namespace, and others with an object of this name.
    pub(crate) async fn fetch<K>(&self, cluster: &Cluster) -> anyhow::Result<K>
    where
        K: CustomResourceExt + Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>,
        K: Clone + DeserializeOwned + std::fmt::Debug,
    {
        one(cluster, self.namespace(cluster), self.name::<K>()?).await
    }
}

/// Reads the object of this name.
///
/// # Errors
/// The object does not exist, or may not be read; the error names the namespace, and others with an object of this name.
pub(crate) async fn one<K>(cluster: &Cluster, namespace: &str, name: &str) -> anyhow::Result<K>
where
    K: CustomResourceExt + Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>,
    K: Clone + DeserializeOwned + std::fmt::Debug,
{
    let error = match Api::<K>::namespaced(cluster.client.clone(), namespace).get(name).await {
        Ok(found) => return Ok(found),
        Err(error) => error,
    };
    if !is_not_found(&error) {
        return Err(cluster.explain(error));
    }
    let plural = K::crd().spec.names.plural;
    let field = format!("metadata.name={name}");
    let elsewhere = Api::<K>::all(cluster.client.clone());
    match elsewhere.list_metadata(&kube::api::ListParams::default().fields(&field)).await {
        Err(error) if is_not_found(&error) => {
            anyhow::bail!("the cluster does not serve {plural}.{GROUP}; run `fleetwright install`")
        }
        Ok(found) if !found.items.is_empty() => {
            let namespaces: Vec<_> = found.items.iter().filter_map(|item| item.namespace()).collect();
            anyhow::bail!(
                "{plural}.{GROUP} {name:?} not found in namespace {namespace}, but in {}; pass -n",
                namespaces.join(", ")
            )
        }
        _ => anyhow::bail!(
            "{plural}.{GROUP} {name:?} not found in namespace {namespace}; pass another namespace with -n"
        ),
    }
}

/// A name, optionally with its type: `machine/x`.
///
/// # Errors
/// It is the name of another kind; the error lists the allowed forms.
pub(crate) fn bare_name<K: CustomResourceExt>(text: &str) -> Result<String, String> {
    let names = K::crd().spec.names;
    let name = match text.split_once('/') {
        None => Some(text),
        Some((kind, name)) => is_called(kind, &names).then_some(name),
    };
    let singular = names.kind.to_lowercase();
    let name = name.filter(|name| !name.is_empty() && !name.contains('/'));
    name.map(str::to_owned).ok_or_else(|| format!("write the {singular}'s name, or {singular}/NAME"))
}

/// The names of a kind.
pub(crate) type KindNames =
    k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinitionNames;

fn is_called(word: &str, names: &KindNames) -> bool {
    let word = word.to_lowercase();
    let word = match word.split_once('.') {
        None => word.as_str(),
        Some((word, group)) if group == GROUP || group == format!("{}.{GROUP}", fleetwright_api::VERSION) => word,
        Some(_) => return false,
    };
    let short = names.short_names.iter().flatten().any(|short| short == word);
    short || word == names.kind.to_lowercase() || word == names.plural
}

#[cfg(test)]
mod tests {
    use fleetwright_api::{Machine, Operation};

    use super::*;

    fn name<K: CustomResourceExt>(words: &[&str]) -> Result<String, String> {
        let target = words.iter().map(|&word| word.to_owned()).collect();
        let args = TargetArgs { target, namespace: None };
        args.name::<K>().map(str::to_owned).map_err(|error| error.to_string())
    }

    #[test]
    fn kinds_go_by_all_their_names() {
        for kind in
            ["machine", "machines", "ma", "Machine", "machines.fleetwright.io", "machine.v1alpha1.fleetwright.io"]
        {
            assert_eq!(name::<Machine>(&[&format!("{kind}/x")]), Ok("x".to_owned()), "{kind}");
            assert_eq!(name::<Machine>(&[kind, "x"]), Ok("x".to_owned()), "{kind}");
        }
        assert_eq!(name::<Operation>(&["op/drain-1"]), Ok("drain-1".to_owned()));
    }

    #[test]
    fn what_cannot_be_meant_is_refused_with_what_is_allowed() {
        for words in
            [&["x"][..], &["pod/x"], &["machine"], &["machine/"], &["machine/a/b"], &["machines.example.com/x"]]
        {
            let error = name::<Machine>(words).expect_err("it is refused");
            assert!(error.contains("machine/"), "{words:?}: {error}");
        }
    }
}
