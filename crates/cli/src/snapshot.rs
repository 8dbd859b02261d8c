//! `fleetwright snapshot`: the steps of pods that the Cluster-Operator makes for snapshots. Of these a person types `keys` alone.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::Subcommand;
use fleetwright_plan::cluster::snapshots::Report;
use fleetwright_snapshots::{Bucket, Encryption, Keep, Keys, Place, Source};

/// Where the meta cluster looks for what a container has to say at its end.
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
    /// Compare it with what it was restored to, put it in its place, and remove old ones.
    Keep(KeepArgs),
    /// Print the Secrets with the keys of the Cluster that are kept with a snapshot, as YAML for `kubectl apply --server-side -f -`.
    Keys(KeysArgs),
    /// Bring one that is kept to a file.
    Fetch(FetchArgs),
    /// Make what a snapshot was restored to the data of a member.
    Place(DataArgs),
    /// Remove what a member had before that.
    Clean(DataArgs),
}

#[derive(clap::Args)]
struct KeysArgs {
    #[command(flatten)]
    place: PlaceArgs,

    /// The snapshot's name.
    #[arg(long)]
    name: String,
}

#[derive(clap::Args)]
struct FetchArgs {
    #[command(flatten)]
    place: PlaceArgs,

    /// The folder to work in.
    #[arg(long)]
    work: PathBuf,

    /// The snapshot's name.
    #[arg(long)]
    name: String,

    /// Take one that is not encrypted.
    #[arg(long)]
    allow_unencrypted: bool,
}

#[derive(clap::Args)]
struct DataArgs {
    /// The member's volume.
    #[arg(long)]
    data: PathBuf,

    /// Which restore it is.
    #[arg(long)]
    id: String,
}

#[derive(clap::Args)]
struct FromArgs {
    /// The folder to work in.
    #[arg(long)]
    work: PathBuf,

    /// The URLs of etcd's members.
    #[arg(long, value_delimiter = ',', required = true)]
    endpoints: Vec<String>,

    /// The folder with the client's certificate.
    #[arg(long)]
    certificates: Option<PathBuf>,

    /// The name that etcd shows.
    #[arg(long)]
    server_name: Option<String>,

    /// A folder to remove first.
    #[arg(long)]
    clear: Option<PathBuf>,
}

impl FromArgs {
    fn source(&self) -> Source {
        let (endpoints, certificates) = (self.endpoints.clone(), self.certificates.clone());
        Source { endpoints, certificates, server_name: self.server_name.clone() }
    }
}

#[derive(clap::Args)]
struct PlaceArgs {
    /// The folder that snapshots are kept in.
    #[arg(long, required_unless_present = "s3_endpoint")]
    volume: Option<PathBuf>,

    /// Where the store answers that snapshots are kept in.
    #[arg(long, conflicts_with = "volume", requires_all = ["s3_bucket", "s3_region", "s3_prefix", "s3_keys"])]
    s3_endpoint: Option<String>,

    /// The bucket.
    #[arg(long)]
    s3_bucket: Option<String>,

    /// The region that requests are signed for.
    #[arg(long)]
    s3_region: Option<String>,

    /// What the names of objects begin with.
    #[arg(long)]
    s3_prefix: Option<String>,

    /// The folder with the keys.
    #[arg(long)]
    s3_keys: Option<PathBuf>,

    /// Allow a store without TLS.
    #[arg(long)]
    s3_insecure: bool,

    /// The Cluster whose snapshots these are, as NAMESPACE/NAME.
    #[arg(long)]
    cluster: String,

    /// The folder with the keys that snapshots are encrypted with.
    #[arg(long)]
    encryption_keys: PathBuf,
}

impl PlaceArgs {
    fn encryption(&self) -> Encryption {
        Encryption { keys: Keys(self.encryption_keys.clone()), cluster: self.cluster.clone() }
    }

    fn place(&self) -> anyhow::Result<Place> {
        if let Some(folder) = &self.volume {
            return Ok(Place::Folder(folder.clone()));
        }
        let text = |given: &Option<String>| given.clone().context("the store is not told whole");
        Ok(Place::Bucket(Bucket {
            endpoint: text(&self.s3_endpoint)?,
            bucket: text(&self.s3_bucket)?,
            region: text(&self.s3_region)?,
            prefix: text(&self.s3_prefix)?,
            keys: self.s3_keys.clone().context("the store is not told whole")?,
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

    /// The snapshot's name.
    #[arg(long)]
    name: String,

    /// Where the etcd answers that it was restored to.
    #[arg(long)]
    scratch: String,

    /// How many are kept.
    #[arg(long)]
    keep: usize,

    /// One that is not removed.
    #[arg(long)]
    spare: Option<String>,

    /// The file with the sealed keys of the Cluster, to keep with the snapshot.
    #[arg(long)]
    cluster_keys: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    crate::runtime()?.block_on(async {
        match &args.step {
            Step::Take(args) => {
                args.clear.iter().try_for_each(|folder| fleetwright_snapshots::clear(folder))?;
                let taken = fleetwright_snapshots::take(&args.source(), &args.work).await?;
                println!("took {} bytes at revision {} or after it", taken.bytes, taken.revision);
                Ok(())
            }
            Step::Keep(args) => {
                if let Some(path) = args.cluster_keys.as_ref().filter(|path| !path.exists()) {
                    eprintln!(
                        "{} does not exist: the snapshot is kept without the keys of the Cluster",
                        path.display()
                    );
                }
                let keep = Keep {
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
                tell(&fleetwright_snapshots::keep(&keep).await?)
            }
            Step::Keys(args) => {
                let encryption = args.place.encryption();
                let keys = args.place.place()?.cluster_keys(&encryption, &args.name).await?;
                crate::print(&crate::yaml::unfolded(&keys.objects(&encryption.cluster))?)
            }
            Step::Fetch(args) => {
                let to = args.work.join(fleetwright_snapshots::FILE);
                // What an attempt before made of it.
                fleetwright_snapshots::clear(&args.work.join("scratch"))?;
                let encryption = args.place.encryption();
                let (found, key_id) =
                    args.place.place()?.fetch(&encryption, &args.name, &to, args.allow_unencrypted).await?;
                tell(&Report {
                    name: found.name,
                    at: found.taken.at,
                    bytes: found.taken.bytes,
                    revision: found.revision,
                    keys: found.keys,
                    kept: Vec::new(),
                    key_id,
                })
            }
            Step::Place(args) => fleetwright_snapshots::place(&args.data, &args.id),
            Step::Clean(args) => fleetwright_snapshots::clean(&args.data, &args.id),
        }
    })
}

/// Says what was done, where the meta cluster looks for it.
fn tell(report: &Report) -> anyhow::Result<()> {
    let report = serde_json::to_string(report)?;
    println!("{report}");
    std::fs::write(SAID, report).with_context(|| format!("cannot write {SAID}"))
}
