//! The example of the guide, run.

#[allow(dead_code, reason = "it is a program of its own")]
#[path = "../../examples/labeler.rs"]
mod labeler;

use anyhow::Result;
use fleetwright_api::Machine;
use fleetwright_kit::{Operator, Settings};
use fleetwright_lab::{Target, define};
use k8s_openapi::api::core::v1::{Event, Namespace};
use kube::api::PostParams;
use kube::runtime::wait::await_condition;
use kube::{Api, ResourceExt};
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn the_example_labels_machines() -> Result<()> {
    labels(Target::embedded().await?).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_example_labels_machines_on_real() -> Result<()> {
    labels(Target::real().await?).await
}

async fn labels(target: Target) -> Result<()> {
    let (client, post) = (target.admin(), PostParams::default());
    define(&client, &fleetwright_api::crds()).await?;
    let namespace: Namespace = serde_json::from_value(json!({ "metadata": { "name": "fleet" } }))?;
    Api::all(client.clone()).create(&post, &namespace).await?;
    let machines: Api<Machine> = Api::namespaced(client.clone(), "fleet");
    for (name, model) in [("host-1", "R740"), ("host-2", "PowerEdge R740")] {
        let machine = json!({
            "apiVersion": "fleetwright.io/v1alpha1", "kind": "Machine", "metadata": { "name": name },
            "spec": { "hardware": { "model": model } },
        });
        machines.create(&post, &serde_json::from_value(machine)?).await?;
    }

    let mut operator = Operator::new(Settings { strict_budgets: true, ..Settings::new("labeler", client.clone()) });
    labeler::add(&mut operator, "fleet");
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(operator.run(async { drop(stopped.await) }));
    let labelled = |machine: Option<&Machine>| {
        machine.is_some_and(|machine| machine.labels().get("model").is_some_and(|model| model == "R740"))
    };
    await_condition(machines, "host-1", labelled).await?;
    let told = async |client: kube::Client| {
        let events = Api::<Event>::namespaced(client, "fleet").list(&Default::default()).await?;
        anyhow::Ok(events.items.iter().any(|event| {
            event.reason.as_deref() == Some("InvalidModel") && event.involved_object.name.as_deref() == Some("host-2")
        }))
    };
    while !told(client.clone()).await? {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let _ = stop.send(());
    running.await??;
    target.stop(false).await;
    Ok(())
}
