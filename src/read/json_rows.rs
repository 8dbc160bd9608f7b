//! JSON objects as rows: what the JSON Lines and the Hugging Face reader share.

use super::builder::{Builder, Want};
use crate::wire::json::{Path, RowScanner, Rows, Sink, Stop, Text, Want as Wanted};

/// Reads one object after the other into a builder.
#[derive(Debug)]
pub struct JsonRows {
    scanner: RowScanner,
    dialect: Dialect,
}

/// What the keys seen so far say of the logger.
#[derive(Debug, Default)]
struct Dialect {
    /// Every object so far is `{"step": n, "data": {...}}`: verl's file logger, whose orjson writes null for NaN.
    step_and_data: bool,
    keys_seen: bool,
    /// Column of `log_history`: an object with it sums up the whole run.
    history: Option<u32>,
    /// Column of `train_runtime`: an object with it holds the mean loss of the whole run as `train_loss`.
    runtime: Option<u32>,
    train_loss: Option<u32>,
    text: String,
}

struct Cells<'r, 'b, 'a> {
    dialect: &'r mut Dialect,
    builder: &'b mut Builder<'a>,
    has_history: bool,
    has_runtime: bool,
}

impl JsonRows {
    /// `rows` says where the objects lie.
    pub fn new(rows: Rows) -> Self {
        Self { scanner: RowScanner::new(rows), dialect: Dialect::default() }
    }

    /// Reads the object that begins in `bytes` as the row at `place`; gives the bytes used. On an error nothing of it
    /// becomes a row.
    #[inline]
    pub fn row(&mut self, bytes: &[u8], at_end: bool, place: u64, builder: &mut Builder<'_>) -> Result<usize, Stop> {
        self.row_beside(bytes, at_end, place, builder, |_| {})
    }

    /// As [`row`](Self::row), with cells that stand beside the object: `beside` gives them.
    #[inline]
    pub fn row_beside<'a>(
        &mut self,
        bytes: &[u8],
        at_end: bool,
        place: u64,
        builder: &mut Builder<'a>,
        beside: impl FnOnce(&mut Builder<'a>),
    ) -> Result<usize, Stop> {
        builder.begin_row(place);
        beside(builder);
        let mut cells = Cells { dialect: &mut self.dialect, builder, has_history: false, has_runtime: false };
        let used = self.scanner.object(bytes, at_end, &mut cells)?;
        let (has_history, has_runtime) = (cells.has_history, cells.has_runtime);
        if has_history {
            builder.drop_values();
        }
        if has_runtime && let Some(train_loss) = self.dialect.train_loss {
            builder.drop_column(train_loss);
        }
        builder.end_row(Some(fingerprint(&bytes[..used])));
        if builder.wants_changed() {
            let mut cells = Cells { dialect: &mut self.dialect, builder, has_history: false, has_runtime: false };
            self.scanner.ask_again(&mut cells);
        }
        Ok(used)
    }

    /// Ends the row that failed at the end of a file, if the end cut it.
    pub fn cut_row(&mut self, bytes: &[u8], place: u64, builder: &mut Builder<'_>) -> Cut {
        // Once more, as if more followed: a number at the very end may be cut and must not count, while a word that can
        // only become NaN or Inf does.
        let completed = completed(bytes);
        builder.begin_row(place);
        let mut cells = Cells { dialect: &mut self.dialect, builder, has_history: false, has_runtime: false };
        if self.scanner.object(completed.as_deref().unwrap_or(bytes), false, &mut cells) != Err(Stop::Incomplete) {
            return Cut::Broken;
        }
        if builder.end_cut_row() { Cut::Lost } else { Cut::Kept }
    }
}

/// Bytes that end in a bare word that reads as NaN or Inf, or is on its way to Infinity, with that word whole.
fn completed(bytes: &[u8]) -> Option<Vec<u8>> {
    const LONGEST: usize = "Infinity".len();
    let letters = bytes.iter().rev().take(LONGEST).take_while(|byte| byte.is_ascii_alphabetic()).count();
    let (before, word) = bytes.split_at(bytes.len() - letters);
    let begins = |whole: &str| {
        word.len() >= 3 && whole.get(..word.len()).is_some_and(|part| part.as_bytes().eq_ignore_ascii_case(word))
    };
    let whole = ["NaN", "Infinity"].into_iter().find(|whole| begins(whole))?;
    Some([before, whole.as_bytes(), b" "].concat())
}

/// What became of a row at the end of a file that is not whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// It is not cut, but broken.
    Broken,
    /// A NaN or Inf in it is lost, for want of a step.
    Lost,
    /// What may count does.
    Kept,
}

/// A hash over the bytes of a record: two records with equal ones hold the same values.
#[inline]
pub fn fingerprint(bytes: &[u8]) -> u64 {
    const K: u64 = 0x9e37_79b9_7f4a_7c15;
    let bytes = bytes.trim_ascii();
    // Four lanes, so that multiplications overlap. Each step is a bijection of its lane: one changed word changes it.
    let mut lanes = [bytes.len() as u64, K, K.rotate_left(16), K.rotate_left(32)];
    let (blocks, rest) = bytes.as_chunks::<32>();
    for block in blocks {
        for (lane, word) in lanes.iter_mut().zip(block.as_chunks::<8>().0) {
            *lane = (*lane ^ u64::from_le_bytes(*word)).wrapping_mul(K);
        }
    }
    let (words, rest) = rest.as_chunks::<8>();
    for (lane, word) in lanes.iter_mut().zip(words) {
        *lane = (*lane ^ u64::from_le_bytes(*word)).wrapping_mul(K).rotate_left(23);
    }
    let last = rest.iter().fold(0u64, |word, byte| word << 8 | u64::from(*byte));
    lanes[3] = (lanes[3] ^ last).wrapping_mul(K);
    lanes.into_iter().fold(K, |hash, lane| {
        let product = u128::from(hash ^ lane) * u128::from(K);
        (product as u64) ^ ((product >> 64) as u64)
    })
}

impl Sink for Cells<'_, '_, '_> {
    fn column(&mut self, path: &Path<'_>) -> Wanted {
        let first = path.parts.first().copied().unwrap_or("");
        let fits = (path.parts.len() == 1 && first == "step") || (path.parts.len() > 1 && first == "data");
        self.dialect.step_and_data = fits && (self.dialect.step_and_data || !self.dialect.keys_seen);
        self.dialect.keys_seen = true;
        // verl's own name of the metric is what stands below `data`.
        let joined = if fits { path.joined.strip_prefix("data/").unwrap_or(path.joined) } else { path.joined };
        let column = self.builder.column(joined);
        match (path.parts.len(), first) {
            (1, "train_runtime") => self.dialect.runtime = Some(column.id),
            (1, "log_history") => self.dialect.history = Some(column.id),
            (1, "train_loss") => self.dialect.train_loss = Some(column.id),
            _ => {}
        }
        match column.want {
            Want::Number => Wanted::Number(column.id),
            Want::Text => Wanted::Text(column.id),
            Want::Note => Wanted::Note(column.id),
        }
    }

    #[inline]
    fn number(&mut self, column: u32, value: f64) {
        self.has_runtime |= self.dialect.runtime == Some(column);
        self.builder.number(column, value);
    }

    fn text(&mut self, column: u32, text: Text<'_>) {
        self.dialect.text.clear();
        text.decode(&mut self.dialect.text);
        self.builder.text(column, &self.dialect.text);
    }

    fn null(&mut self, column: u32) {
        if self.dialect.step_and_data {
            self.builder.null_for_nan(column);
        }
    }

    #[inline]
    fn filled(&mut self, column: u32, numeric: bool) {
        self.has_runtime |= self.dialect.runtime == Some(column);
        self.has_history |= self.dialect.history == Some(column);
        self.builder.filled(column, numeric);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_records_have_equal_fingerprints_and_others_do_not() {
        let line = b"{\"step\": 10, \"loss\": 2.5, \"grad_norm\": 0.75}";
        assert_eq!(fingerprint(line), fingerprint(b"  {\"step\": 10, \"loss\": 2.5, \"grad_norm\": 0.75}\r"));
        for at in 0..line.len() {
            let mut other = line.to_vec();
            other[at] ^= 1;
            assert_ne!(fingerprint(line), fingerprint(&other), "byte {at}");
        }
    }
}
