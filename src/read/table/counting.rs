//! The run column of all units, read by several workers before any signal is: it says how many rows each run has, so that a
//! run is judged and dropped with its last row. Whoever reads which unit when, runs are numbered in the order of the table.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arrow_array::ArrayRef;

use super::cells::{Stretch, stretches};
use super::runs::Known;
use crate::model::Fault;

/// Rows to a stretch below which the runs of a unit are not remembered, but read again.
const SHORT: u64 = 16;
/// Stretches that a unit may have whatever its rows.
const FEW: u64 = 64;

/// Time after which a worker that waits looks whether the scan was cancelled.
const TICK: Duration = Duration::from_millis(20);

/// The runs of one unit, numbered within it.
#[derive(Debug, Default)]
pub struct Counted {
    ids: Vec<String>,
    index: HashMap<String, u32>,
    rows: Vec<u64>,
    stretches: Option<Vec<Stretch>>,
    done: u64,
    /// Why its rows cannot all be told by run.
    pub lost: Option<Fault>,
}

impl Counted {
    /// A unit of so many rows, none of them seen yet.
    pub fn new(rows: u64) -> Self {
        Self { stretches: u32::try_from(rows).ok().map(|_| Vec::new()), ..Self::default() }
    }

    /// Rows seen.
    pub fn done(&self) -> u64 {
        self.done
    }

    /// Takes the next rows of the run column.
    pub fn add(&mut self, ids: &ArrayRef) {
        let Self { ids: known, index, rows, .. } = self;
        let mut intern = |id: &str| {
            if let Some(found) = index.get(id) {
                return *found;
            }
            let next = known.len() as u32;
            known.push(id.to_owned());
            index.insert(id.to_owned(), next);
            rows.push(0);
            next
        };
        let found = stretches(ids, &mut intern);
        let mut start = 0;
        for stretch in found {
            self.rows[stretch.key as usize] += u64::from(stretch.end - start);
            start = stretch.end;
            let Some(all) = &mut self.stretches else { continue };
            let end = (self.done + u64::from(stretch.end)) as u32;
            match all.last_mut() {
                Some(last) if last.key == stretch.key => last.end = end,
                _ => all.push(Stretch { end, key: stretch.key }),
            }
        }
        self.done += ids.len() as u64;
        if self.stretches.as_ref().is_some_and(|all| all.len() as u64 > FEW + self.done / SHORT) {
            self.stretches = None;
        }
    }
}

/// What the units counted so far say.
#[derive(Debug, Default)]
pub struct Totals {
    /// Rows of each run, and where it begins.
    pub known: HashMap<u32, Known>,
    /// Rows that could be of any run of a data set.
    pub lost: Vec<(usize, Fault)>,
}

impl Totals {
    /// Counts rows of a run in a unit of a part. Units come in their order.
    pub fn count(&mut self, run: u32, rows: u64, unit: usize, part: u32) {
        let known = self.known.entry(run).or_insert(Known { first_unit: Some(unit), part, ..Known::default() });
        known.rows = Some(known.rows.unwrap_or(0) + rows);
        known.is_split |= known.part != part;
    }

    /// Takes the next unit; `intern` gives an id its index among all. Gives the stretches of its rows, if they are few.
    pub fn take(
        &mut self,
        counted: Counted,
        unit: usize,
        part: u32,
        intern: &mut dyn FnMut(&str) -> u32,
    ) -> Option<Vec<Stretch>> {
        let runs: Vec<u32> = counted.ids.iter().map(|id| intern(id)).collect();
        for (run, rows) in runs.iter().zip(&counted.rows) {
            self.count(*run, *rows, unit, part);
        }
        let mut stretches = counted.stretches?;
        for stretch in &mut stretches {
            stretch.key = runs[stretch.key as usize];
        }
        Some(stretches)
    }
}

#[derive(Debug, Default)]
struct State {
    /// Units counted before one that comes earlier.
    ready: BTreeMap<usize, Counted>,
    next: usize,
    totals: Totals,
    is_done: bool,
    has_panicked: bool,
}

/// The count while several workers are at it.
#[derive(Debug, Default)]
pub struct Counting {
    state: Mutex<State>,
    ended: Condvar,
}

/// A worker's turn at one unit. Left by a panic, nothing of the source can be read.
pub struct Turn<'c> {
    counting: &'c Counting,
    has_ended: bool,
}

impl Counting {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to count a unit.
    pub fn begin(&self) -> Turn<'_> {
        Turn { counting: self, has_ended: false }
    }

    /// Waits until all units are counted. Gives whether they were: not after a panic or once `cancelled` says so.
    pub fn wait(&self, cancelled: &dyn Fn() -> bool) -> bool {
        let mut state = self.state();
        while !state.is_done && !state.has_panicked {
            if cancelled() {
                return false;
            }
            state = self.ended.wait_timeout(state, TICK).unwrap_or_else(PoisonError::into_inner).0;
        }
        state.is_done
    }

    /// Whether a worker left its turn by a panic.
    pub fn has_panicked(&self) -> bool {
        self.state().has_panicked
    }
}

impl Turn<'_> {
    /// Hands in what was counted. `merge` gets the units in their order, once the earlier ones are in; `finish` comes after
    /// the last of `units`.
    pub fn end(
        mut self,
        unit: usize,
        counted: Counted,
        units: usize,
        merge: &mut dyn FnMut(usize, Counted, &mut Totals),
        finish: &mut dyn FnMut(Totals),
    ) {
        let mut state = self.counting.state();
        state.ready.insert(unit, counted);
        loop {
            let next = state.next;
            let Some(counted) = state.ready.remove(&next) else { break };
            merge(next, counted, &mut state.totals);
            state.next += 1;
        }
        if state.next == units {
            finish(std::mem::take(&mut state.totals));
            state.is_done = true;
            self.counting.ended.notify_all();
        }
        drop(state);
        self.has_ended = true;
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if !self.has_ended {
            self.counting.state().has_panicked = true;
            self.counting.ended.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use arrow_array::StringArray;

    use super::*;

    fn counted(ids: &[&str]) -> Counted {
        let mut counted = Counted::new(ids.len() as u64);
        for piece in ids.chunks(2) {
            counted.add(&(Arc::new(StringArray::from(piece.to_vec())) as ArrayRef));
        }
        counted
    }

    #[test]
    fn units_in_any_order_number_runs_in_the_order_of_the_table() {
        let units: [&[&str]; 3] = [&["b", "b", "a"], &["a", "c", "c", "c"], &["b"]];
        for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
            let counting = Counting::default();
            let (mut ids, mut runs, mut totals) = (Vec::<String>::new(), Vec::new(), None);
            for unit in order {
                assert!(totals.is_none(), "ended before unit {unit}");
                let mut merge = |unit: usize, counted: Counted, all: &mut Totals| {
                    let mut intern = |id: &str| match ids.iter().position(|known| known == id) {
                        Some(index) => index as u32,
                        None => {
                            ids.push(id.to_owned());
                            ids.len() as u32 - 1
                        }
                    };
                    let part = u32::from(unit == 2);
                    let stretches = all.take(counted, unit, part, &mut intern).expect("few stretches");
                    runs.push(stretches.iter().map(|stretch| (stretch.end, stretch.key)).collect::<Vec<_>>());
                };
                let finish = &mut |all: Totals| totals = Some(all);
                counting.begin().end(unit, counted(units[unit]), units.len(), &mut merge, finish);
            }
            assert!(counting.wait(&|| panic!("all units are counted")));
            assert_eq!(ids, ["b", "a", "c"], "{order:?}");
            assert_eq!(runs, [vec![(2, 0), (3, 1)], vec![(1, 1), (4, 2)], vec![(1, 0)]], "{order:?}");
            let totals = totals.expect("ended");
            let known = |run: u32| totals.known[&run];
            assert_eq!([0, 1, 2].map(|run| known(run).rows), [Some(3), Some(2), Some(3)]);
            assert_eq!([0, 1, 2].map(|run| known(run).first_unit), [Some(0), Some(0), Some(1)]);
            assert_eq!([0, 1, 2].map(|run| known(run).is_split), [true, false, false]);
        }
    }

    #[test]
    fn rows_that_change_runs_often_are_not_remembered() {
        let ids: Vec<&str> = (0..400).map(|row| if row % 2 == 0 { "a" } else { "b" }).collect();
        let (often, seldom) = (counted(&ids), counted(&["a"; 400]));
        assert_eq!((often.rows.clone(), often.done(), often.stretches), (vec![200, 200], 400, None));
        assert_eq!(seldom.stretches, Some(vec![Stretch { end: 400, key: 0 }]));
    }

    #[test]
    fn who_waits_is_woken_by_a_panic_and_by_the_end_of_the_scan() {
        let counting = Counting::default();
        let cancelled = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| counting.wait(&|| cancelled.load(Ordering::Relaxed)));
            cancelled.store(true, Ordering::Relaxed);
            assert!(!waiting.join().expect("no panic"));
            let waiting = scope.spawn(|| counting.wait(&|| false));
            drop(counting.begin());
            assert!(!waiting.join().expect("no panic"));
        });
        assert!(counting.has_panicked());
    }
}
