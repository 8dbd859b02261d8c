//! NetworkPolicies are enforced as Kubernetes documents, if the option is set.

use super::*;

/// Pods by namespace and name: each answers at port 8080.
const PODS: [(&str, &str); 4] = [("one", "web"), ("one", "db"), ("one", "other"), ("two", "web")];

fn pod(namespace: &str, name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "namespace": namespace, "labels": { "app": name } },
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": false,
            "containers": [{ "name": "web", "image": images::WEB }],
        },
    })
}

fn policy(name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": { "name": name, "namespace": "one" }, "spec": spec,
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn textbook_policies_are_enforced_on_hosts() -> Result<()> {
    on_meta_with(Options { enforce: true, ..Options::default() }, async |meta| {
        let client = meta.client();
        let namespace = |name: &str| json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name, "labels": { "team": name } } });
        apply(&client, &[namespace("one"), namespace("two")]).await?;
        // A new namespace gets its service account a moment later.
        let pods = PODS.map(|(namespace, name)| pod(namespace, name));
        eventually("pods to be made", || async { Ok(apply(&client, &pods).await.ok()) }).await?;
        let mut addresses = Vec::new();
        for (namespace, name) in PODS {
            let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
            let address = || async {
                let status = pods.get(name).await?.status.unwrap_or_default();
                Ok::<_, anyhow::Error>(status.pod_ip.filter(|_| status.phase.as_deref() == Some("Running")))
            };
            addresses.push(eventually(&format!("{namespace}/{name} to run"), address).await?);
        }
        let [web, db, other, far] = [0, 1, 2, 3].map(|number: usize| addresses[number].as_str());
        let address = meta.address().to_string();
        let node = address.as_str();
        // Rules are loaded, and servers listen, after a moment.
        let expect = async |what: &str, table: &[(&str, &str, u16, bool)]| -> Result<()> {
            let seen = || async {
                for (from, to, port, open) in table {
                    if meta.connects(from, to, *port).await? != *open {
                        return Ok(None);
                    }
                }
                Ok::<_, anyhow::Error>(Some(()))
            };
            let settled = eventually(what, seen).await;
            let mut wrong = String::new();
            for (from, to, port, open) in table {
                if settled.is_err() && meta.connects(from, to, *port).await? != *open {
                    wrong += &format!("{from} to {to}:{port} should be {}; ", if *open { "open" } else { "closed" });
                }
            }
            settled.context(wrong)
        };
        // 10256 is the health port of kube-proxy on the node.
        let open = [(web, db), (far, db), (db, far), (other, web)].map(|(from, to)| (from, to, 8080_u16, true));
        expect("everything to be open", &open).await?;
        expect("the node to be open", &[(web, node, 10256, true)]).await?;

        apply(&client, &[policy("deny", json!({ "podSelector": {}, "policyTypes": ["Ingress"] }))]).await?;
        expect("nothing to be let in", &[
            (web, db, 8080, false),
            (far, db, 8080, false),
            (db, far, 8080, true),
            (web, node, 10256, true),
        ])
        .await?;

        let by_label = json!({
            "podSelector": { "matchLabels": { "app": "db" } },
            "ingress": [{ "from": [{ "podSelector": { "matchLabels": { "app": "web" } } }], "ports": [{ "port": 8080 }] }],
        });
        apply(&client, &[policy("by-label", by_label)]).await?;
        expect("a label to let in, in its own namespace", &[
            (web, db, 8080, true),
            (other, db, 8080, false),
            (far, db, 8080, false),
            (web, other, 8080, false),
        ])
        .await?;

        let by_namespace = json!({
            "podSelector": { "matchLabels": { "app": "db" } },
            "ingress": [{ "from": [{
                "namespaceSelector": { "matchExpressions": [{ "key": "team", "operator": "In", "values": ["two"] }] },
                "podSelector": { "matchLabels": { "app": "web" } },
            }] }],
        });
        apply(&client, &[policy("by-namespace", by_namespace)]).await?;
        expect("another namespace to be let in beside", &[(far, db, 8080, true), (web, db, 8080, true), (other, db, 8080, false)])
            .await?;

        let block = json!({
            "podSelector": { "matchLabels": { "app": "web" } },
            "policyTypes": ["Egress"],
            "egress": [{ "to": [{ "ipBlock": { "cidr": "0.0.0.0/0", "except": [format!("{far}/32"), format!("{node}/32")] } }] }],
        });
        apply(&client, &[policy("block", block)]).await?;
        expect("exceptions of a block to be out of reach", &[
            (web, db, 8080, true),
            (web, far, 8080, false),
            (web, node, 10256, false),
            (db, far, 8080, true),
            (db, node, 10256, true),
            // Egress is allowed, ingress is not.
            (web, other, 8080, false),
        ])
        .await?;

        let policies: Api<k8s_openapi::api::networking::v1::NetworkPolicy> = Api::namespaced(client.clone(), "one");
        policies.delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
        expect("everything to be open again", &[(web, far, 8080, true), (web, other, 8080, true), (web, node, 10256, true)]).await
    })
    .await
}
