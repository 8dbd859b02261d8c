//! `fleetwright snapshot`: the steps of pods that the Cluster-Operator creates for snapshots. People use only `keys`.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::Subcommand;
use fleetwright_plan::cluster::snapshots::SnapshotReport;
use fleetwright_snapshots::{Bucket, Encryption, EncryptionKeys, EtcdEndpoint, KeepOptions, SnapshotStore};

/// The termination message file of the container.
const SAID: &str = "/dev/termination-log";

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    step: Step,
}

#[derive(Subcommand)]
enum Step {
    /// Take a snapshot of etcd.
    Take(FromArgs),
    /// Compare a snapshot with the etcd that it was restored to, store it, and remove old snapshots.
    Keep(KeepArgs),
    /// Print the Secrets with the keys of the Cluster that are stored with a snapshot, as YAML for `kubectl apply --server-side -f -`.
    Keys(KeysArgs),
    /// Copy a stored snapshot to a file.
    Fetch(FetchArgs),
    /// Replace the data of a member with the data that a snapshot was restored to.
    Place(DataArgs),
    /// Remove the data that a member had before the restore.
    Clean(CleanArgs),
}

#[derive(clap::Args)]
struct KeysArgs {
    #[command(flatten)]
    place: PlaceArgs,

    /// Name of the snapshot.
    #[arg(long)]
    name: String,
}

#[derive(clap::Args)]
struct FetchArgs {
    #[command(flatten)]
    place: PlaceArgs,

    /// Working directory.
    #[arg(long)]
    work: PathBuf,

    /// Name of the snapshot.
    #[arg(long)]
    name: String,

    /// Accept a snapshot that is not encrypted.
    #[arg(long)]
    allow_unencrypted: bool,
}

#[derive(clap::Args)]
struct DataArgs {
    /// Directory of the member's volume.
    #[arg(long)]
    data: PathBuf,

    /// ID of the restore.
    #[arg(long)]
    id: String,
}

#[derive(clap::Args)]
struct CleanArgs {
    /// Directory of the member's volume.
    #[arg(long)]
    data: PathBuf,
}

#[derive(clap::Args)]
struct FromArgs {
    /// Working directory.
    #[arg(long)]
    work: PathBuf,

    /// URLs of the etcd members, comma-separated.
    #[arg(long, value_delimiter = ',', required = true)]
    endpoints: Vec<String>,

    /// Directory with the client certificate.
    #[arg(long)]
    certificates: Option<PathBuf>,

    /// Server name in the certificate of etcd.
    #[arg(long)]
    server_name: Option<String>,

    /// Directory to remove first.
    #[arg(long)]
    clear: Option<PathBuf>,
}

impl FromArgs {
    fn source(&self) -> EtcdEndpoint {
        let (endpoints, certificates) = (self.endpoints.clone(), self.certificates.clone());
        EtcdEndpoint { endpoints, certificates, server_name: self.server_name.clone() }
    }
}

#[derive(clap::Args)]
struct PlaceArgs {
    /// Directory in which snapshots are stored.
    #[arg(long, required_unless_present = "s3_endpoint")]
    volume: Option<PathBuf>,

    /// Endpoint of the S3 store in which snapshots are stored.
    #[arg(long, conflicts_with = "volume", requires_all = ["s3_bucket", "s3_region", "s3_prefix", "s3_keys"])]
    s3_endpoint: Option<String>,

    /// Bucket of the S3 store.
    #[arg(long)]
    s3_bucket: Option<String>,

    /// Region for which requests are signed.
    #[arg(long)]
    s3_region: Option<String>,

    /// Prefix of the object names.
    #[arg(long)]
    s3_prefix: Option<String>,

    /// Directory with the access keys of the S3 store.
    #[arg(long)]
    s3_keys: Option<PathBuf>,

    /// Allow an S3 store without TLS.
    #[arg(long)]
    s3_insecure: bool,

    /// Cluster of the snapshots, as NAMESPACE/NAME.
    #[arg(long)]
    cluster: String,

    /// Directory with the keys that encrypt snapshots.
    #[arg(long)]
    encryption_keys: PathBuf,
}

impl PlaceArgs {
    fn encryption(&self) -> Encryption {
        Encryption { keys: EncryptionKeys(self.encryption_keys.clone()), cluster: self.cluster.clone() }
    }

    fn place(&self) -> anyhow::Result<SnapshotStore> {
        if let Some(folder) = &self.volume {
            return Ok(SnapshotStore::Folder(folder.clone()));
        }
        let text = |given: &Option<String>| given.clone().context("incomplete options of the S3 store");
        Ok(SnapshotStore::Bucket(Bucket {
            endpoint: text(&self.s3_endpoint)?,
            bucket: text(&self.s3_bucket)?,
            region: text(&self.s3_region)?,
            prefix: text(&self.s3_prefix)?,
            keys: self.s3_keys.clone().context("incomplete options of the S3 store")?,
            insecure: self.s3_insecure,
        }))
    }
}

#[derive(clap::Args)]
struct KeepArgs {
    #[command(flatten)]
    from: FromArgs,

    #[command(flatten)]
    place: PlaceArgs,

    /// Name of the snapshot.
    #[arg(long)]
    name: String,

    /// URL of the etcd that the snapshot was restored to.
    #[arg(long)]
    scratch: String,

    /// Number of snapshots to keep.
    #[arg(long)]
    keep: usize,

    /// Snapshot that is never removed.
    #[arg(long)]
    spare: Option<String>,

    /// File with the sealed keys of the Cluster, to store with the snapshot.
    #[arg(long)]
    cluster_keys: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    crate::runtime()?.block_on(async {
        match &args.step {
            Step::Take(args) => {
                args.clear.iter().try_for_each(|folder| fleetwright_snapshots::clear(folder))?;
                let taken = fleetwright_snapshots::take(&args.source(), &args.work).await?;
                println!("took a snapshot of {} bytes at revision {} or later", taken.bytes, taken.revision);
                Ok(())
            }
            Step::Keep(args) => {
                if let Some(path) = args.cluster_keys.as_ref().filter(|path| !path.exists()) {
                    eprintln!(
                        "{} does not exist: the snapshot is stored without the keys of the Cluster",
                        path.display()
                    );
                }
                let keep = KeepOptions {
                    name: args.name.clone(),
                    work: args.from.work.clone(),
                    source: args.from.source(),
                    scratch: args.scratch.clone(),
                    place: args.place.place()?,
                    encryption: args.place.encryption(),
                    keep: args.keep,
                    spare: args.spare.clone(),
                    cluster_keys: args.cluster_keys.clone(),
                };
                print_report(&fleetwright_snapshots::keep(&keep).await?)
            }
            Step::Keys(args) => {
                let encryption = args.place.encryption();
                let keys = args.place.place()?.cluster_keys(&encryption, &args.name).await?;
                crate::print(&crate::yaml::unfolded(&keys.objects(&encryption.cluster))?)
            }
            Step::Fetch(args) => {
                let to = args.work.join(fleetwright_snapshots::FILE);
                // Removes the data of an earlier attempt.
                fleetwright_snapshots::clear(&args.work.join("scratch"))?;
                let encryption = args.place.encryption();
                let (found, key_id) =
                    args.place.place()?.fetch(&encryption, &args.name, &to, args.allow_unencrypted).await?;
                print_report(&SnapshotReport {
                    name: found.name,
                    at: found.taken.at,
                    bytes: found.taken.bytes,
                    revision: found.revision,
                    keys: found.keys,
                    kept: Vec::new(),
                    key_id,
                    etcd: found.taken.etcd,
                })
            }
            Step::Place(args) => fleetwright_snapshots::place(&args.data, &args.id),
            Step::Clean(args) => fleetwright_snapshots::clean(&args.data),
        }
    })
}

/// Prints the report and writes it to the termination message.
fn print_report(report: &SnapshotReport) -> anyhow::Result<()> {
    let report = serde_json::to_string(report)?;
    println!("{report}");
    std::fs::write(SAID, report).with_context(|| format!("cannot write {SAID}"))
}
