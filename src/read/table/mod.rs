//! Tables that hold the rows of many runs, as Arrow batches: from Parquet and Arrow files, and from frames in memory.

pub mod batch;
pub mod cells;
mod counting;
pub mod file;
pub mod files;
mod guard;
pub mod ipc;
pub mod layout;
mod long;
mod pages;
pub mod pandas;
pub mod parquet;
pub mod runs;
pub mod sources;
#[cfg(test)]
mod testing;

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use arrow_array::RecordBatch;
    use arrow_array::cast::AsArray;
    use arrow_array::types::Float64Type;
    use arrow_cast::cast;
    use arrow_schema::DataType;

    use super::files::Open;
    use super::testing::{opened, read};
    use super::*;
    use crate::model::{FaultKind, Limits};
    use crate::read::broken::Broken;

    fn fixture(name: &str) -> (Open, Vec<u8>) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
        let open: Open = if name.starts_with("parquet/") { parquet::open } else { ipc::open };
        (open, std::fs::read(path).unwrap())
    }

    /// All values of a column as doubles, and what was broken.
    fn doubles(name: &str, column: &str) -> (Vec<Option<f64>>, Vec<Broken>) {
        let (open, bytes) = fixture(name);
        let table = opened(open, &bytes, &Limits::default()).unwrap();
        let (batches, broken) = read(&*table, &[table.schema().index_of(column).unwrap()], 7);
        let of = |rows: &RecordBatch| {
            let cast = cast(rows.column(0), &DataType::Float64).unwrap();
            cast.as_primitive::<Float64Type>().iter().collect::<Vec<_>>()
        };
        (batches.iter().flat_map(of).collect(), broken)
    }

    #[test]
    fn tables_of_other_writers_hold_what_was_planted() {
        for (name, column, rows, bad, nulls) in [
            ("parquet/wide.parquet", "grad_norm", 54, 4, 0),
            ("parquet/long.parquet", "value", 162, 4, 0),
            ("parquet/partitions/date=2026-01/run_id=run-a/00000000.parquet", "grad_norm", 30, 0, 0),
            ("parquet/partitions/date=2026-01/run_id=run-b/00000000.parquet", "grad_norm", 24, 4, 0),
            ("parquet/dictionary.parquet", "grad_norm", 54, 4, 0),
            ("parquet/one-run.parquet", "grad_norm", 24, 4, 0),
            ("parquet/wandb/team_llm_ab12cd34_0.runhistory.parquet", "train/grad_norm", 40, 0, 20),
            ("parquet/wandb/team_llm_ab12cd34_1.runhistory.parquet", "train/grad_norm", 20, 2, 10),
            ("parquet/wandb/team_llm_ab12cd34_0.runhistory.parquet", "system/gpu.0.temp", 40, 0, 40),
            ("parquet/mlflow.parquet", "value", 64, 0, 0),
            ("parquet/trackio.parquet", "train/grad_norm", 24, 1, 0),
            ("parquet/types.parquet", "grad_norm", 20, 2, 0),
            ("parquet/types.parquet", "loss", 20, 0, 0),
            ("parquet/types.parquet", "reward", 20, 0, 20),
            ("parquet/types.parquet", "nothing", 20, 0, 20),
            ("arrow/wide.arrow", "grad_norm", 54, 4, 0),
            ("arrow/long.arrows", "value", 162, 4, 0),
            ("arrow/categorical.feather", "grad_norm", 54, 4, 0),
            ("arrow/types.arrow", "grad_norm", 20, 2, 0),
            ("arrow/types.arrow", "nothing", 20, 0, 20),
        ] {
            let (values, broken) = doubles(name, column);
            assert_eq!(broken, [], "{name}");
            let is_bad = |value: &&Option<f64>| value.is_some_and(|value| !value.is_finite());
            let found =
                (values.len(), values.iter().filter(is_bad).count(), values.iter().filter(|v| v.is_none()).count());
            assert_eq!(found, (rows, bad, nulls), "{name} {column}");
        }
    }

    #[test]
    fn cut_tables_keep_whole_batches() {
        for (name, rows) in [("arrow/cut.arrows", 48), ("arrow/no-footer.arrow", 54)] {
            let (values, broken) = doubles(name, "grad_norm");
            let kinds: Vec<FaultKind> = broken.iter().map(|broken| broken.kind).collect();
            assert_eq!((values.len(), kinds), (rows, vec![FaultKind::Truncated]), "{name}");
        }
        for (name, code) in [
            ("parquet/cut.parquet", "cut-header"),
            ("parquet/lfs-pointer.parquet", "git-lfs-pointer"),
            ("arrow/lfs-pointer.arrow", "git-lfs-pointer"),
        ] {
            let (open, bytes) = fixture(name);
            assert_eq!(opened(open, &bytes, &Limits::default()).err().unwrap().code, code, "{name}");
        }
    }

    #[test]
    fn every_fixture_reads_in_every_column() {
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
        let mut folders: Vec<PathBuf> = ["parquet", "arrow"].map(|format| data.join(format)).to_vec();
        let mut seen = 0;
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                    continue;
                }
                let name = path.strip_prefix(&data).unwrap().to_str().unwrap().to_owned();
                let (open, bytes) = fixture(&name);
                if let Ok((rows, _)) = testing::exhaust(open, &bytes, &Limits::default()) {
                    assert!(rows > 0, "{name}");
                    seen += 1;
                }
            }
        }
        assert!(seen >= 15, "only {seen} tables");
    }
}
