//! How files of tables make sources: the parts of one directory, partitions below it, and what names say.

use std::cmp::Ordering;
use std::collections::HashMap;

use crate::model::{Entry, Format, Part, Source};
use crate::read::single;

/// Groups files into sources: those of one directory are one, and partitions (`run_id=abc/`) belong to the directory in
/// which the outermost of them lies. A file that is alone there is a source by itself. Parts stand in natural order;
/// their names are relative to the source.
pub fn group(format: Format, entries: &[Entry], own: &[usize]) -> Vec<Source> {
    let mut homes: HashMap<&str, usize> = HashMap::new();
    let mut sources: Vec<(&str, Vec<&Entry>)> = Vec::new();
    for entry in own.iter().map(|index| &entries[*index]) {
        let home = home(entry.parent());
        let at = *homes.entry(home).or_insert_with(|| {
            sources.push((home, Vec::new()));
            sources.len() - 1
        });
        sources[at].1.push(entry);
    }
    let source = |(home, files): (&str, Vec<&Entry>)| {
        if let [file] = files[..]
            && file.parent() == home
        {
            return single(format, file);
        }
        let skip = if home.is_empty() { 0 } else { home.len() + 1 };
        let part = |file: &Entry| {
            let name = file.path[skip..].to_owned();
            Part { path: file.path.clone(), name, size: file.size }
        };
        let mut parts: Vec<Part> = files.into_iter().map(part).collect();
        parts.sort_by(|a, b| natural(&a.name, &b.name));
        Source { format, path: home.to_owned(), directory: home.to_owned(), parts }
    };
    sources.into_iter().map(source).collect()
}

/// A directory without the partitions at its end.
fn home(mut directory: &str) -> &str {
    loop {
        let (parent, name) = directory.rsplit_once('/').unwrap_or(("", directory));
        if partition(name).is_none() {
            return directory;
        }
        directory = parent;
    }
}

/// `key=value`.
fn partition(name: &str) -> Option<(&str, &str)> {
    name.split_once('=').filter(|(key, _)| !key.is_empty())
}

/// What Hive and those after it write where a partition has no value.
const NO_VALUE: &str = "__HIVE_DEFAULT_PARTITION__";

/// Keys and values of the partitions in the name of a part, outermost first; percent signs are decoded. A partition
/// without a value is left out.
pub fn hive_values(name: &str) -> impl Iterator<Item = (&str, String)> {
    let folders = name.rsplit_once('/').map_or("", |(folders, _)| folders);
    let values = folders.split('/').filter_map(partition).filter(|(_, value)| *value != NO_VALUE);
    values.map(|(key, value)| (key, decoded(value)))
}

/// Without percent signs; what is none, and what would be no UTF-8, stays or is replaced.
fn decoded(value: &str) -> String {
    let digit = |byte: Option<&u8>| byte.and_then(|byte| char::from(*byte).to_digit(16));
    let (bytes, mut plain, mut at) = (value.as_bytes(), Vec::new(), 0);
    while let Some(byte) = bytes.get(at) {
        match (byte, digit(bytes.get(at + 1)), digit(bytes.get(at + 2))) {
            (b'%', Some(high), Some(low)) => {
                plain.push((high * 16 + low) as u8);
                at += 3;
            }
            _ => {
                plain.push(*byte);
                at += 1;
            }
        }
    }
    String::from_utf8(plain).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

/// A history as W&B exports it, `<entity>_<project>_<run>_<i>.runhistory.parquet`: what stands before `<i>`, and `<i>`.
/// Exports that differ in nothing else are parts of one run, in this order. Folders are left out.
pub fn wandb_export(name: &str) -> Option<(&str, u64)> {
    let name = name.rsplit('/').next().unwrap_or(name);
    let (stem, number) = name.strip_suffix(".runhistory.parquet")?.rsplit_once('_')?;
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    let number = number.parse().ok().filter(|_| is_number)?;
    (!stem.is_empty()).then_some((stem, number))
}

/// Order of names in which numbers count as such: `part-2` before `part-10`.
pub fn natural(a: &str, b: &str) -> Ordering {
    let (mut left, mut right) = (a.as_bytes(), b.as_bytes());
    loop {
        let digits = |bytes: &[u8]| bytes.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let (first, second) = (digits(left), digits(right));
        if first > 0 && second > 0 {
            let number = |bytes: &[u8]| bytes.iter().position(|byte| *byte != b'0').unwrap_or(bytes.len());
            let (x, y) = (&left[..first], &right[..second]);
            let (x, y) = (&x[number(x)..], &y[number(y)..]);
            // Longer numbers are larger.
            let order = x.len().cmp(&y.len()).then(x.cmp(y));
            if order != Ordering::Equal {
                return order;
            }
            (left, right) = (&left[first..], &right[second..]);
            continue;
        }
        match (left.split_first(), right.split_first()) {
            (Some((x, rest)), Some((y, other))) if x == y => (left, right) = (rest, other),
            // `part-01` and `part-1` are two files.
            (None, None) => return a.cmp(b),
            (x, y) => return x.map(|(byte, _)| byte).cmp(&y.map(|(byte, _)| byte)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::EntryKind;
    use proptest::prelude::*;

    fn sources(paths: &[&str]) -> Vec<(String, Vec<String>)> {
        let mut paths = paths.to_vec();
        paths.sort_unstable();
        let entry = |path: &&str| Entry { path: (*path).to_owned(), size: 9, kind: EntryKind::File };
        let entries: Vec<Entry> = paths.iter().map(entry).collect();
        let own: Vec<usize> = (0..entries.len()).collect();
        let names = |source: Source| source.parts.into_iter().map(|part| part.name).collect();
        group(Format::Parquet, &entries, &own).into_iter().map(|source| (source.path.clone(), names(source))).collect()
    }

    #[test]
    fn files_of_a_directory_are_a_source() {
        let found = sources(&["a/part-10.parquet", "a/part-2.parquet", "b/only.parquet", "top.parquet"]);
        let want = [
            ("a".to_owned(), vec!["part-2.parquet".to_owned(), "part-10.parquet".to_owned()]),
            ("b/only.parquet".to_owned(), vec!["only.parquet".to_owned()]),
            ("top.parquet".to_owned(), vec!["top.parquet".to_owned()]),
        ];
        assert_eq!(found, want);
    }

    #[test]
    fn partitions_belong_to_the_directory_that_holds_them() {
        let found =
            sources(&["t/date=2025-01/run=b/0.parquet", "t/date=2025-01/run=a/0.parquet", "t/date=2024/x.parquet"]);
        let names = ["date=2024/x.parquet", "date=2025-01/run=a/0.parquet", "date=2025-01/run=b/0.parquet"];
        assert_eq!(found, [("t".to_owned(), names.map(str::to_owned).to_vec())]);
        // Of the root itself, and alone.
        assert_eq!(sources(&["run=a/0.parquet"]), [(String::new(), vec!["run=a/0.parquet".to_owned()])]);
        // What lies in between is no partition.
        let found = sources(&["run=a/metrics/0.parquet", "run=b/metrics/0.parquet"]);
        let paths: Vec<&str> = found.iter().map(|(path, _)| path.as_str()).collect();
        assert_eq!(paths, ["run=a/metrics/0.parquet", "run=b/metrics/0.parquet"]);
    }

    #[test]
    fn partitions_have_values() {
        let values: Vec<(&str, String)> =
            hive_values("run_id=a%2Fb%20c/lr=1e-3,x=2/d=__HIVE_DEFAULT_PARTITION__/k=v.parquet").collect();
        assert_eq!(values, [("run_id", "a/b c".to_owned()), ("lr", "1e-3,x=2".to_owned())]);
        assert_eq!(hive_values("k=v.parquet").count(), 0);
        assert_eq!(decoded("%"), "%");
        assert_eq!(decoded("%zz%4"), "%zz%4");
        assert_eq!(decoded("%ff"), "\u{fffd}");
    }

    #[test]
    fn exports_of_a_run() {
        assert_eq!(wandb_export("x/team_llm_ab12_10.runhistory.parquet"), Some(("team_llm_ab12", 10)));
        for name in
            ["team.runhistory.parquet", "a_b.runhistory.parquet", "a_+1.runhistory.parquet", "a_1.parquet", "_0"]
        {
            assert_eq!(wandb_export(name), None, "{name}");
        }
    }

    proptest! {
        #[test]
        fn natural_order_is_an_order(a in "[a0-2]{0,6}", b in "[a0-2]{0,6}", c in "[a0-2]{0,6}") {
            prop_assert_eq!(natural(&a, &b), natural(&b, &a).reverse());
            prop_assert_eq!(natural(&a, &b) == Ordering::Equal, a == b);
            if natural(&a, &b) != Ordering::Greater && natural(&b, &c) != Ordering::Greater {
                prop_assert_ne!(natural(&a, &c), Ordering::Greater);
            }
        }

        #[test]
        fn natural_order_is_that_of_numbers(a in 0u32..2000, b in 0u32..2000) {
            prop_assert_eq!(natural(&format!("part-{a}.x"), &format!("part-{b}.x")), a.cmp(&b));
        }
    }
}
