//! What discovery found: files, grouped into recordings.

/// The formats that gradscan reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Format {
    /// rlprobe run directory.
    Rlprobe,
    /// Hugging Face `trainer_state.json`.
    HfTrainer,
    /// JSON objects, one a line.
    Jsonl,
    /// TensorBoard event files of one directory.
    TensorBoard,
    /// Delimited text with a header, and TensorBoard's exports of one chart.
    Csv,
    /// Parquet tables, of one run or many.
    Parquet,
    /// Arrow IPC files and streams.
    Arrow,
    /// Run directory of MLflow's file store.
    Mlflow,
    /// Tree of tables of DVCLive.
    Dvclive,
    /// Tables of DeepSpeed's CSV monitor.
    Deepspeed,
    /// Comet's offline experiments.
    Comet,
    /// ClearML's offline sessions.
    Clearml,
    /// Operations that Neptune 1.x keeps on disk.
    Neptune,
    /// Logs of torchtune's DiskLogger.
    Torchtune,
    /// MLflow's SQL store.
    MlflowSql,
    /// trackio's database of a project.
    Trackio,
    /// Transaction logs of W&B (`*.wandb`).
    Wandb,
    /// Logs of SwanLab (`*.swanlab`).
    Swanlab,
    /// Arrays given in memory (`scan_series`, `scan_frame`).
    Memory,
}

impl Format {
    /// Whether files of it may as well hold anything else than recordings: their columns tell.
    pub fn is_table(self) -> bool {
        matches!(self, Self::Parquet | Self::Arrow | Self::MlflowSql)
    }

    /// The name shown in `runs.format`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Rlprobe => "rlprobe",
            Self::HfTrainer => "hf_trainer",
            Self::Jsonl => "jsonl",
            Self::TensorBoard => "tensorboard",
            Self::Csv => "csv",
            Self::Parquet => "parquet",
            Self::Arrow => "arrow",
            Self::Mlflow => "mlflow",
            Self::Dvclive => "dvclive",
            Self::Deepspeed => "deepspeed",
            Self::Comet => "comet",
            Self::Clearml => "clearml",
            Self::Neptune => "neptune",
            Self::Torchtune => "torchtune",
            Self::MlflowSql => "mlflow_sql",
            Self::Trackio => "trackio",
            Self::Wandb => "wandb",
            Self::Swanlab => "swanlab",
            Self::Memory => "memory",
        }
    }
}

/// What stands at a path. Links are never followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Link,
    /// A FIFO, a socket, a device: never opened.
    Special,
}

/// One file or directory met while walking. `path` is relative to the scanned root, parts joined by `/`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// Relative path.
    pub path: String,
    /// Size in bytes; 0 for directories.
    pub size: u64,
    /// What it is.
    pub kind: EntryKind,
}

impl Entry {
    /// The last part of the path.
    pub fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }

    /// The last part of the path without the suffix of its compression: `trainer_state.json` of
    /// `trainer_state.json.gz`.
    pub fn plain_name(&self) -> &str {
        plain(self.name())
    }

    /// The path without its last part; empty at the root.
    pub fn parent(&self) -> &str {
        self.path.rsplit_once('/').map_or("", |(parent, _)| parent)
    }
}

/// A name without the suffix of its compression (`.gz`, `.gzip`, `.zst`, `.zstd`); the same name where it has none.
pub fn plain(name: &str) -> &str {
    let cut = [".gz", ".gzip", ".zst", ".zstd"].iter().find_map(|suffix| {
        let at = name.len().checked_sub(suffix.len())?;
        name.get(at..)?.eq_ignore_ascii_case(suffix).then_some(at)
    });
    // A name that is all suffix says nothing else.
    cut.filter(|at| *at > 0 && !name[..*at].ends_with('/')).map_or(name, |at| &name[..at])
}

/// Endings of the files that SQLite keeps beside a database.
pub const DATABASE_COMPANIONS: [&str; 3] = ["-wal", "-shm", "-journal"];

/// Paths at which a companion of a database may lie, best first: beside `a.db`, beside what `a.db.gz` was, packed like it.
pub fn companions(path: &str, ending: &str) -> Vec<String> {
    let plain = plain(path);
    let packing = &path[plain.len()..];
    let mut paths = vec![format!("{plain}{ending}")];
    if !packing.is_empty() {
        paths.extend([format!("{plain}{ending}{packing}"), format!("{path}{ending}")]);
    }
    paths
}

/// One file of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The entry's relative path, which discovery can turn back into a path on disk.
    pub path: String,
    /// The name shown in places: relative to the recording.
    pub name: String,
    /// Size in bytes when it was discovered.
    pub size: u64,
}

/// The files that make one recording (or, in formats that hold many runs, several).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// The reader that claims it.
    pub format: Format,
    /// The recording's path relative to the root: a directory for directory formats, a file else.
    pub path: String,
    /// The directory that groups the twins which several loggers wrote of one training.
    pub directory: String,
    /// Its files, in reading order.
    pub parts: Vec<Part>,
}

impl Source {
    /// Bytes of all parts when they were discovered.
    pub fn bytes(&self) -> u64 {
        // Sizes in an archive may be forged.
        self.parts.iter().fold(0, |sum, part| sum.saturating_add(part.size))
    }
}
