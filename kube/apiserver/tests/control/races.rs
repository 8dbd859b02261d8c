use std::sync::Arc;

use serde_json::json;

use crate::support::{CONFIG_MAPS, Cluster, config_map};

const WRITERS: usize = 8;
const WRITES: usize = 40;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn patches_that_race_all_land() {
    let cluster = Arc::new(Cluster::start().await);
    cluster.created(CONFIG_MAPS, config_map("one")).await;
    let path = format!("{CONFIG_MAPS}/one");
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let (cluster, path) = (cluster.clone(), path.clone());
            tokio::spawn(async move {
                for write in 0..WRITES {
                    let (code, answer) =
                        cluster.merge(&path, json!({"data": {format!("{writer}-{write}"): "x"}})).await;
                    assert_eq!(code, 200, "{answer}");
                }
            })
        })
        .collect();
    for writer in writers {
        writer.await.expect("the writer ends");
    }
    let (_, now) = cluster.get(&path).await;
    assert_eq!(now["data"].as_object().map(|data| data.len()), Some(WRITERS * WRITES + 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_updates_that_name_one_version_one_lands() {
    let cluster = Arc::new(Cluster::start().await);
    let one = cluster.created(CONFIG_MAPS, config_map("one")).await;
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let (cluster, mut mine) = (cluster.clone(), one.clone());
            mine["data"] = json!({"writer": writer.to_string()});
            tokio::spawn(async move { cluster.put(&format!("{CONFIG_MAPS}/one"), mine).await.0 })
        })
        .collect();
    let mut codes = Vec::new();
    for writer in writers {
        codes.push(writer.await.expect("the writer ends"));
    }
    codes.sort_unstable();
    let mut wanted = vec![200];
    wanted.resize(WRITERS, 409);
    assert_eq!(codes, wanted);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_creates_of_one_name_one_lands() {
    let cluster = Arc::new(Cluster::start().await);
    let writers: Vec<_> = (0..WRITERS)
        .map(|_| {
            let cluster = cluster.clone();
            tokio::spawn(async move { cluster.post(CONFIG_MAPS, config_map("one")).await.0 })
        })
        .collect();
    let mut created = 0;
    for writer in writers {
        created += usize::from(writer.await.expect("the writer ends") == 201);
    }
    assert_eq!(created, 1);
}
