//! What the name of a checkpoint tells: its number, what that number counts, and which entry shows that it was
//! written whole.
//!
//! Only names are looked at; nothing is opened. Layouts, each tried in this order:
//!
//! | layout | name | number | whole when |
//! |---|---|---|---|
//! | `nemo` | `<model>--val_loss=1.2-step=N-consumed_samples=..[-last]`, directory or file | step | holds the weights; no `<name>-unfinished` beside it |
//! | `lightning` | `epoch=E-step=N[-vK].ckpt`, user templates with `step=` or `epoch=` | step, else epoch | |
//! | `hf` | `checkpoint-N/` (HF Trainer, TRL, Axolotl, LLaMA-Factory, ms-swift, accelerate) | step | `trainer_state.json`, written last (accelerate: `random_states_0.pkl`; ms-swift with Megatron: `iter_*/`), all shards |
//! | `megatron` | `iter_NNNNNNN/` | step | ranks or distributed metadata |
//! | `deepspeed` | `global_stepN/`, OpenRLHF `best_global_stepN/` | step | model states |
//! | `verl` | `global_step_N/` | step | not empty |
//! | `torchtitan` | `step-N/` (torchtitan, Levanter) | step | `.metadata`, `metadata.json`, an index or weights |
//! | `olmo` | `stepN/`, `stepN-unsharded/` (OLMo, OLMo-core), `stepN-tokensM/` | step | OLMo-core: its three entries; OLMo: the model |
//! | `composer` | `epE-baN-rankR.pt`, `epE-baN/`, exports `baN/` | batch | `.metadata` or weights |
//! | `torchtune` | `epoch_N/` | epoch | not empty |
//! | `orbax` | `N/` below `checkpoints/`, `checkpoint/` or `ckpt/` (MaxText, Flax) | step | `_CHECKPOINT_METADATA` or `commit_success.txt` |
//! | `fairseq` | `checkpoint_E_N.pt`, `checkpointE.pt` | step, else epoch | |
//! | `llm.c` | `model_NNNNNNNN.bin` | step | `DONE_NNNNNNNN` beside it |
//! | `sb3` | `<prefix>_N_steps.zip` | environment steps | |
//! | `timm` | `checkpoint-N.pth[.tar]` (timm, MAE) | epoch | |
//! | `tensorflow` | `model.ckpt-N.index` (the index is written last) | step | |
//! | `keras` | `model.05-0.42.keras`, `cp-0005.ckpt.index`, `weights-improvement-10-0.75.hdf5` | epoch | |
//! | `plain` | `step_100.pt`, `ckpt-100.pt`, `model_100.pth`, `iter_100.pth`, `epoch_3.pth`, `ckpt_100/` | the integer next to the word | not empty |
//!
//! Never a checkpoint: what is being written (`.tmp`, `.partial`, `-tmp`, `.orbax-checkpoint-tmp-..`, `-unfinished`),
//! copies (`checkpoint-500 (1)`), what a dying trainer left (`bad-model-2.pt`, `crash.pt`), names without a number
//! (`last.ckpt`, `checkpoint_best.pt`), numbers above `u64`, and Ray's `checkpoint_000003/`, which counts
//! checkpoints, not steps.

use std::collections::{HashMap, HashSet};
use std::fmt;

/// What a step or the number of a checkpoint counts. Different units are never compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Unit {
    /// Optimizer updates.
    Step,
    /// Passes over the data.
    Epoch,
    /// Batches.
    Batch,
    /// Training samples consumed.
    Samples,
    /// Tokens consumed.
    Tokens,
    /// Steps of the environment (reinforcement learning).
    EnvSteps,
}

impl Unit {
    /// The name in tables: `step`, `epoch`, `batch`, `samples`, `tokens` or `env_steps`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Step => "step",
            Self::Epoch => "epoch",
            Self::Batch => "batch",
            Self::Samples => "samples",
            Self::Tokens => "tokens",
            Self::EnvSteps => "env_steps",
        }
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a checkpoint's name tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointName {
    /// The number in the name, as written.
    pub number: u64,
    /// What it counts.
    pub unit: Unit,
    /// Entries of a checkpoint directory that show it whole: alternatives separated by `|`, each of one or more names
    /// joined by `+`, a `*` at one end of a name standing for anything. `None`: nothing inside can tell.
    pub needs: Option<&'static str>,
    /// The layout's name, see the module.
    pub layout: &'static str,
}

/// Reads the name of a file or directory, without its path. `None` if it names no checkpoint with a number.
#[must_use]
pub fn parse(name: &str, is_dir: bool) -> Option<CheckpointName> {
    parse_in("", name, is_dir)
}

/// Like [`parse`], knowing the name of the folder around it: Orbax names directories by the bare number.
#[must_use]
pub fn parse_in(parent: &str, name: &str, is_dir: bool) -> Option<CheckpointName> {
    if name.is_empty() || name.len() > 255 || name.starts_with('.') {
        return None;
    }
    if name.contains(|c: char| c.is_whitespace() || c.is_control() || matches!(c, '(' | ')' | '~')) {
        return None;
    }
    let lower = name.to_ascii_lowercase();
    if lower.ends_with(".part") || lower.split(['-', '_', '.']).any(|word| UNUSABLE.contains(&word)) {
        return None;
    }
    let found = |(number, unit), needs, layout| Some(CheckpointName { number, unit, needs, layout });
    let step = |number| (number, Unit::Step);

    let (stem, extension) = split_extension(&lower, is_dir);
    if is_dir || extension.is_some() {
        match keyed(stem) {
            Keyed::Number(number, nemo) => {
                let needs = (nemo && is_dir).then_some("weights|model_weights|common.pt");
                return found(number, needs.or(is_dir.then_some("*")), if nemo { "nemo" } else { "lightning" });
            }
            Keyed::Unreadable => return None,
            Keyed::Absent => {}
        }
    }
    if is_dir {
        if let Some(n) = after(&lower, "checkpoint-") {
            return found(step(n), Some("trainer_state.json|iter_*|random_states_0.pkl"), "hf");
        }
        if let Some(n) = after(&lower, "iter_") {
            return found(step(n), Some("mp_rank_*|metadata.json|.metadata|common.pt"), "megatron");
        }
        let tag = lower.strip_prefix("best_").unwrap_or(&lower);
        let tag = tag.strip_suffix("_universal").or_else(|| tag.strip_suffix("_hf")).unwrap_or(tag);
        if let Some(n) = after(tag, "global_step") {
            return found(step(n), Some("*model_states.pt|zero|*.safetensors|*.bin"), "deepspeed");
        }
        if let Some(n) = after(&lower, "global_step_") {
            return found(step(n), Some("*"), "verl");
        }
        if let Some(n) = after(&lower, "step-") {
            let needs = ".metadata|metadata.json|model.safetensors.index.json|*.safetensors|*.pt|*.pth|*.bin|*.ckpt";
            return found(step(n), Some(needs), "torchtitan");
        }
        let olmo = lower.strip_suffix("-unsharded").or_else(|| lower.split_once("-tokens").map(|(step, _)| step));
        if let Some(n) = after(olmo.unwrap_or(&lower), "step") {
            let needs = ".metadata.json+model_and_optim+train|.metadata|model|model.*|*.safetensors|*.bin|*.pt";
            return found(step(n), Some(needs), "olmo");
        }
        if let Some(n) = composer(&lower).or_else(|| after(&lower, "ba")) {
            return found((n, Unit::Batch), Some(".metadata|config.json|*.pt"), "composer");
        }
        if let Some(n) = after(&lower, "epoch_") {
            return found((n, Unit::Epoch), Some("*"), "torchtune");
        }
        if let Some(n) = digits(&lower) {
            let parent = parent.to_ascii_lowercase();
            let orbax = ["checkpoints", "checkpoint", "ckpts", "ckpt"].contains(&parent.as_str());
            return if orbax { found(step(n), Some("_CHECKPOINT_METADATA|commit_success.txt"), "orbax") } else { None };
        }
        if lower.strip_prefix("checkpoint_").is_some_and(|n| n.len() == 6 && n.starts_with('0')) {
            return None;
        }
        return plain(stem, true).and_then(|number| found(number, Some("*"), "plain"));
    }

    let Some(extension) = extension else {
        // Flax's own checkpoints were single files without extension.
        return after(&lower, "checkpoint_").and_then(|n| found(step(n), None, "plain"));
    };
    if let Some(n) =
        stem.rsplit_once("-rank").filter(|(_, rank)| digits(rank).is_some()).and_then(|(stem, _)| composer(stem))
    {
        return found((n, Unit::Batch), None, "composer");
    }
    if extension == "pt" || extension == "pth" {
        if let Some((epoch, rest)) = stem.strip_prefix("checkpoint_").and_then(|rest| rest.split_once('_')) {
            let updates = rest.split_once('-').map_or(rest, |(updates, _)| updates);
            if let (Some(_), Some(n)) = (digits(epoch), digits(updates)) {
                return found(step(n), None, "fairseq");
            }
        }
        if let Some(n) = after(stem, "checkpoint") {
            return found((n, Unit::Epoch), None, "fairseq");
        }
    }
    match extension {
        "bin" => {
            if let Some(n) = stem.strip_prefix("model_").filter(|n| n.len() == 8).and_then(digits) {
                return found(step(n), None, "llm.c");
            }
        }
        "zip" => {
            let n = stem.strip_suffix("_steps").and_then(|rest| rest.rsplit_once('_')).and_then(|(_, n)| digits(n))?;
            return found((n, Unit::EnvSteps), None, "sb3");
        }
        "pth" | "pth.tar" => {
            if let Some(n) = after(stem, "checkpoint-") {
                return found((n, Unit::Epoch), None, "timm");
            }
        }
        "index" => {
            let n = stem.rsplit_once(".ckpt-").and_then(|(_, n)| digits(n))?;
            return found(step(n), None, "tensorflow");
        }
        "keras" | "weights.h5" | "h5" | "hdf5" | "ckpt.index" => {
            let number = plain_words(stem).ok()?.or_else(|| first_number(stem).map(|n| (n, Unit::Epoch)))?;
            return found(number, None, "keras");
        }
        _ => {}
    }
    plain(stem, false).and_then(|number| found(number, None, "plain"))
}

/// Whether a checkpoint directory holds what shows it whole: its [`needs`](CheckpointName::needs), and all of `K`
/// files where one is named `..-00001-of-0000K..`. `files`: the names directly below it.
#[must_use]
pub fn is_complete(files: &[&str], layout: &CheckpointName) -> bool {
    let Some(needs) = layout.needs else { return true };
    let holds = |need: &str| match (need.strip_prefix('*'), need.strip_suffix('*')) {
        (Some(end), _) => files.iter().any(|file| file.ends_with(end)),
        (None, Some(start)) => files.iter().any(|file| file.starts_with(start)),
        (None, None) => files.contains(&need),
    };
    needs.split('|').any(|all| all.split('+').all(holds)) && shards_complete(files)
}

/// Whether the marks beside a checkpoint allow it: NeMo removes `<name>-unfinished` at the end, llm.c writes
/// `DONE_<step>`. `beside`: whether an entry of that name lies in the same directory.
#[must_use]
pub fn is_complete_beside(name: &str, layout: &CheckpointName, beside: impl Fn(&str) -> bool) -> bool {
    match layout.layout {
        "nemo" => !beside(&format!("{name}-unfinished")),
        "llm.c" => beside(&format!("DONE_{:08}", layout.number)),
        _ => true,
    }
}

/// Words of names that are copies, unfinished, or left by a dying trainer.
const UNUSABLE: &[&str] = &[
    "tmp",
    "temp",
    "partial",
    "unfinished",
    "incomplete",
    "copy",
    "bak",
    "backup",
    "old",
    "crdownload",
    "crash",
    "bad",
    "nan",
    "broken",
    "corrupt",
    "corrupted",
    "failed",
    "diverged",
];

/// Extensions of checkpoint files, the longer of two that fit first.
const EXTENSIONS: &[&str] = &[
    "pth.tar",
    "pt.tar",
    "ckpt.index",
    "weights.h5",
    "pt",
    "pth",
    "ckpt",
    "bin",
    "safetensors",
    "tar",
    "pkl",
    "msgpack",
    "npz",
    "h5",
    "hdf5",
    "keras",
    "index",
    "zip",
    "nemo",
    "params",
];

/// Name without extension, and the extension. A directory keeps its dots, but for Lightning's `.ckpt/`.
fn split_extension(name: &str, is_dir: bool) -> (&str, Option<&'static str>) {
    let known = if is_dir { &["ckpt"] } else { EXTENSIONS };
    for extension in known {
        if let Some(stem) = name.strip_suffix(extension).and_then(|rest| rest.strip_suffix('.'))
            && !stem.is_empty()
        {
            return (stem, Some(extension));
        }
    }
    (name, None)
}

/// A number of ASCII digits only; `None` if it is none or above `u64`.
fn digits(text: &str) -> Option<u64> {
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

fn after(name: &str, prefix: &str) -> Option<u64> {
    digits(name.strip_prefix(prefix)?)
}

/// `ep0-ba100`: the batch.
fn composer(stem: &str) -> Option<u64> {
    let (epoch, batch) = stem.split_once('-')?;
    after(epoch, "ep")?;
    after(batch, "ba")
}

enum Keyed {
    Number((u64, Unit), bool),
    /// A key is there and its number is cut, fractional or too large.
    Unreadable,
    Absent,
}

/// `key=number` templates of Lightning and NeMo: the step if there is one, else the epoch, else the samples.
fn keyed(stem: &str) -> Keyed {
    let nemo = stem.contains("consumed_samples=");
    for (key, unit) in
        [("step=", Unit::Step), ("iter=", Unit::Step), ("epoch=", Unit::Epoch), ("consumed_samples=", Unit::Samples)]
    {
        let starts_word = |at: usize| at == 0 || stem[..at].ends_with(['-', '_']);
        let Some((at, _)) = stem.rmatch_indices(key).find(|(at, _)| starts_word(*at)) else { continue };
        let value = &stem[at + key.len()..];
        let value = &value[..value.find(['-', '_']).unwrap_or(value.len())];
        let value = if unit == Unit::Samples { value.strip_suffix(".0").unwrap_or(value) } else { value };
        return digits(value).map_or(Keyed::Unreadable, |number| Keyed::Number((number, unit), nemo));
    }
    Keyed::Absent
}

/// Words of files that are written with a checkpoint and hold no weights.
const COMPANIONS: &[&str] =
    &["optimizer", "optim", "scheduler", "scaler", "rng", "replay", "vecnormalize", "dataloader"];

/// First words of files that are numbered like checkpoints and are none.
const OTHER_FILES: &[&str] = &[
    "opt",
    "random",
    "log",
    "logs",
    "events",
    "sample",
    "samples",
    "image",
    "images",
    "data",
    "dataset",
    "train",
    "eval",
    "pred",
    "preds",
    "output",
    "outputs",
    "results",
    "metrics",
    "loss",
    "grad",
    "grads",
    "embeddings",
    "cache",
    "pytorch",
    "adapter",
    "state",
];

/// Names of plain scripts: the integer next to a word.
fn plain(stem: &str, is_dir: bool) -> Option<(u64, Unit)> {
    let words = || stem.split(['-', '_', '.']);
    if words().next().is_some_and(|first| OTHER_FILES.contains(&first))
        || words().any(|word| COMPANIONS.contains(&word))
    {
        return None;
    }
    let ends_in_number = stem.ends_with(|c: char| c.is_ascii_digit());
    if is_dir && !ends_in_number {
        // `step1_supervised_finetuning/` is a stage, not a checkpoint.
        return None;
    }
    if let Some(number) = plain_words(stem).ok()? {
        return Some(number);
    }
    // A number next to a word that says only that it is a checkpoint must end the name: `model-00001-of-00005` is a
    // shard.
    let head = stem.trim_end_matches(|c: char| c.is_ascii_digit());
    let number = &stem[head.len()..];
    let word = head.strip_suffix(['-', '_', '.']).unwrap_or(head).rsplit(['-', '_', '.']).next()?;
    let named = ["ckpt", "checkpoint", "chkpt"].contains(&word) || (word == "model" && !is_dir);
    if named { digits(number).map(|number| (number, Unit::Step)) } else { None }
}

fn unit_word(word: &str) -> Option<Unit> {
    match word {
        "step" | "steps" | "iter" | "iters" | "iteration" | "iterations" | "update" | "updates" => Some(Unit::Step),
        "epoch" | "epochs" | "ep" => Some(Unit::Epoch),
        "batch" | "batches" | "ba" => Some(Unit::Batch),
        "samples" => Some(Unit::Samples),
        "tokens" => Some(Unit::Tokens),
        "timesteps" => Some(Unit::EnvSteps),
        _ => None,
    }
}

/// The integer next to a word that says what it counts; of several the step. `Err` if one of them is above `u64` or a
/// fraction.
fn plain_words(stem: &str) -> Result<Option<(u64, Unit)>, ()> {
    let mut pieces: Vec<(&str, &str)> = Vec::new();
    for piece in stem.split(['-', '_']) {
        // `step100`: a word and its number in one piece. `0.5` stays whole and is no integer.
        let cut = piece.find(|c: char| c.is_ascii_digit()).unwrap_or(piece.len());
        let (word, number) = piece.split_at(cut);
        pieces.push((word.trim_end_matches('.').rsplit('.').next().unwrap_or_default(), number));
    }
    let mut best: Option<(u64, Unit)> = None;
    for (n, (word, number)) in pieces.iter().enumerate() {
        if number.is_empty() {
            continue;
        }
        let before = match n.checked_sub(1) {
            _ if !word.is_empty() => unit_word(word),
            Some(n) if pieces[n].1.is_empty() => unit_word(pieces[n].0),
            _ => None,
        };
        // `ckpt_100_steps`: the word may follow, unless the next number has it (`x_3_step_1000`).
        let follows = || {
            let taken = pieces.get(n + 2).is_some_and(|next| next.0.is_empty() && !next.1.is_empty());
            pieces.get(n + 1).filter(|next| next.1.is_empty() && !taken).and_then(|next| unit_word(next.0))
        };
        let Some(unit) = before.or_else(follows) else { continue };
        let number = digits(number).ok_or(())?;
        let better = match best {
            None => true,
            Some((_, known)) => unit == Unit::Step || known != Unit::Step,
        };
        if better {
            best = Some((number, unit));
        }
    }
    Ok(best)
}

/// The first piece that is an integer: Keras templates write `weights.{epoch:02d}-{val_loss:.2f}`.
fn first_number(stem: &str) -> Option<u64> {
    let (word, rest) = stem.split_once(|c: char| c.is_ascii_digit()).map(|(word, _)| stem.split_at(word.len()))?;
    if !word.ends_with(['-', '_', '.']) {
        return None;
    }
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    if !rest[end..].is_empty() && !rest[end..].starts_with(['-', '_']) {
        return None;
    }
    digits(&rest[..end])
}

/// Whether every family `..-00001-of-0000K..` has its K members.
fn shards_complete(files: &[&str]) -> bool {
    let mut families: HashMap<(&str, &str), HashSet<u64>> = HashMap::new();
    for file in files {
        let Some((head, tail)) = file.split_once("-of-") else { continue };
        let Some((name, part)) = head.rsplit_once('-') else { continue };
        let end = tail.find(|c: char| !c.is_ascii_digit()).unwrap_or(tail.len());
        if let (Some(part), Some(_)) = (digits(part), digits(&tail[..end])) {
            families.entry((name, tail)).or_default().insert(part);
        }
    }
    families.iter().all(|((_, tail), parts)| {
        let end = tail.find(|c: char| !c.is_ascii_digit()).unwrap_or(tail.len());
        digits(&tail[..end]).is_some_and(|total| parts.len() as u64 >= total)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use Unit::{Batch, EnvSteps, Epoch, Samples, Step, Tokens};

    const DIR: bool = true;
    const FILE: bool = false;

    /// name, directory, layout, number, unit
    const CHECKPOINTS: &[(&str, bool, &str, u64, Unit)] = &[
        ("checkpoint-500", DIR, "hf", 500, Step),
        ("checkpoint-0", DIR, "hf", 0, Step),
        ("checkpoint-000500", DIR, "hf", 500, Step),
        ("checkpoint-18446744073709551615", DIR, "hf", u64::MAX, Step),
        ("epoch=1-step=3000.ckpt", FILE, "lightning", 3000, Step),
        ("epoch=1-step=3000.ckpt", DIR, "lightning", 3000, Step),
        ("epoch=1-step=3000-v2.ckpt", FILE, "lightning", 3000, Step),
        ("step=3000-epoch=1.ckpt", FILE, "lightning", 3000, Step),
        ("epoch=02-val_loss=0.32.ckpt", FILE, "lightning", 2, Epoch),
        ("sample-mnist-epoch=02-val_loss=0.32.ckpt", FILE, "lightning", 2, Epoch),
        ("model-epoch=3-global_step=1200.ckpt", FILE, "lightning", 1200, Step),
        ("best-epoch=3-step=500-val_loss=1.25.ckpt", FILE, "lightning", 500, Step),
        ("llama3--val_loss=1.20-step=999-consumed_samples=32000.0", DIR, "nemo", 999, Step),
        ("llama3--val_loss=1.20-step=999-consumed_samples=32000.0-last", DIR, "nemo", 999, Step),
        ("megatron_gpt--val_loss=2.30-step=1000-consumed_samples=256000.0.ckpt", FILE, "nemo", 1000, Step),
        ("gpt-consumed_samples=256000.0.ckpt", FILE, "nemo", 256_000, Samples),
        ("iter_0003000", DIR, "megatron", 3000, Step),
        ("iter_1000000", DIR, "megatron", 1_000_000, Step),
        ("global_step3000", DIR, "deepspeed", 3000, Step),
        ("best_global_step120", DIR, "deepspeed", 120, Step),
        ("global_step100_universal", DIR, "deepspeed", 100, Step),
        ("global_step20_hf", DIR, "deepspeed", 20, Step),
        ("global_step_300", DIR, "verl", 300, Step),
        ("step-500", DIR, "torchtitan", 500, Step),
        ("step1000", DIR, "olmo", 1000, Step),
        ("step1000-unsharded", DIR, "olmo", 1000, Step),
        ("step1000-tokens4B", DIR, "olmo", 1000, Step),
        ("ep0-ba100-rank0.pt", FILE, "composer", 100, Batch),
        ("ep12-ba4000-rank7.pt", FILE, "composer", 4000, Batch),
        ("ep0-ba100", DIR, "composer", 100, Batch),
        ("ba4800", DIR, "composer", 4800, Batch),
        ("checkpoint_3_12000.pt", FILE, "fairseq", 12_000, Step),
        ("checkpoint_3_12000-shard0.pt", FILE, "fairseq", 12_000, Step),
        ("checkpoint_3_12000-model_part-0.pt", FILE, "fairseq", 12_000, Step),
        ("checkpoint12.pt", FILE, "fairseq", 12, Epoch),
        ("checkpoint0099.pth", FILE, "fairseq", 99, Epoch),
        ("epoch_3", DIR, "torchtune", 3, Epoch),
        ("model_00005000.bin", FILE, "llm.c", 5000, Step),
        ("rl_model_10000_steps.zip", FILE, "sb3", 10_000, EnvSteps),
        ("model.05-0.42.keras", FILE, "keras", 5, Epoch),
        ("cp-0005.ckpt.index", FILE, "keras", 5, Epoch),
        ("weights-improvement-10-0.75.hdf5", FILE, "keras", 10, Epoch),
        ("model_epoch_07.keras", FILE, "keras", 7, Epoch),
        ("weights.07.weights.h5", FILE, "keras", 7, Epoch),
        ("model.ckpt-5000.index", FILE, "tensorflow", 5000, Step),
        ("checkpoint-12.pth.tar", FILE, "timm", 12, Epoch),
        ("checkpoint-12.pth", FILE, "timm", 12, Epoch),
        ("step_100.pt", FILE, "plain", 100, Step),
        ("step100.pt", FILE, "plain", 100, Step),
        ("step_00000100.safetensors", FILE, "plain", 100, Step),
        ("ckpt_100.pt", FILE, "plain", 100, Step),
        ("ckpt-100.pt", FILE, "plain", 100, Step),
        ("checkpoint-100.pt", FILE, "plain", 100, Step),
        ("checkpoint_100.pt", FILE, "plain", 100, Step),
        ("checkpoint_5000", FILE, "plain", 5000, Step),
        ("model_100.pth", FILE, "plain", 100, Step),
        ("model_0004999.pth", FILE, "plain", 4999, Step),
        ("iter_100.pth", FILE, "plain", 100, Step),
        ("epoch_3.pth", FILE, "plain", 3, Epoch),
        ("epoch12.pt", FILE, "plain", 12, Epoch),
        ("ckpt_epoch_12.pth", FILE, "plain", 12, Epoch),
        ("checkpoint_3_epoch.pt", FILE, "plain", 3, Epoch),
        ("ckpt_100_steps.pt", FILE, "plain", 100, Step),
        ("epoch_3_step_1000.pt", FILE, "plain", 1000, Step),
        ("step_1000_epoch_3.pt", FILE, "plain", 1000, Step),
        ("gpt2-medium_step_100_rank0.pt", FILE, "plain", 100, Step),
        ("ckpt_tokens_4000000.pt", FILE, "plain", 4_000_000, Tokens),
        ("ckpt_100", DIR, "plain", 100, Step),
        ("checkpoint_00005000", DIR, "plain", 5000, Step),
        ("step_100", DIR, "plain", 100, Step),
        ("epoch-3", DIR, "plain", 3, Epoch),
    ];

    const NO_CHECKPOINTS: &[(&str, bool)] = &[
        ("checkpoint-500 (1)", DIR),
        ("checkpoint-500 copy", DIR),
        ("Copy of checkpoint-500", DIR),
        ("checkpoint-500.tmp", DIR),
        ("checkpoint-500-tmp", DIR),
        ("tmp-checkpoint-500", DIR),
        ("checkpoint-500.partial", DIR),
        ("checkpoint-500.part", DIR),
        ("checkpoint-500-merged", DIR),
        ("checkpoint-500", FILE),
        ("checkpoint-", DIR),
        ("checkpoint--5", DIR),
        ("checkpoint-5e3", DIR),
        ("checkpoint-500.zip", FILE),
        ("checkpoint-18446744073709551616", DIR),
        ("checkpoint-99999999999999999999999", DIR),
        ("last-checkpoint", DIR),
        ("checkpoint", DIR),
        ("step1000-tmp", DIR),
        ("step1000-unsharded-tmp", DIR),
        ("latest", DIR),
        ("latest-unsharded", DIR),
        ("1000.orbax-checkpoint-tmp-1712345678", DIR),
        ("llama3--val_loss=1.20-step=999-consumed_samples=32000.0-unfinished", FILE),
        ("llama3--val_loss=1.20-step=99999999999999999999-consumed_samples=1.0", DIR),
        ("epoch=1-step=3000.ckpt.partial", FILE),
        ("epoch=1-step=3000.ckpt.part", FILE),
        ("epoch=1-step=99999999999999999999.ckpt", FILE),
        ("epoch=1-step=3000", FILE),
        ("epoch=1-val_loss=0.5-step=.ckpt", FILE),
        ("last.ckpt", FILE),
        ("best.ckpt", FILE),
        ("lr=0.1,epoch=3", DIR),
        ("iter_abc", DIR),
        ("iter_٣٠", DIR),
        ("release", DIR),
        ("bad-model-2.pt", FILE),
        ("crash.pt", FILE),
        ("crash_step_100.pt", FILE),
        ("checkpoint_last.pt", FILE),
        ("checkpoint_best.pt", FILE),
        ("checkpoint.best_loss_3.20.pt", FILE),
        ("checkpoint.best_bleu_32.pt", FILE),
        ("latest-rank0.pt", FILE),
        ("ckpt.pt", FILE),
        ("state_00005000_00000.bin", FILE),
        ("DONE_00005000", FILE),
        ("rl_model_replay_buffer_10000_steps.pkl", FILE),
        ("model.zip", FILE),
        ("model-00001-of-00005.safetensors", FILE),
        ("pytorch_model-00001-of-00002.bin", FILE),
        ("pytorch_model_0.bin", FILE),
        ("mp_rank_00_model_states.pt", FILE),
        ("model_world_size_8_rank_0.pt", FILE),
        ("rng_state_0.pth", FILE),
        ("optimizer_step_100.pt", FILE),
        ("consolidated.00.pth", FILE),
        ("checkpoint_000003", DIR),
        ("1000", DIR),
        ("step1_supervised_finetuning", DIR),
        ("model_2", DIR),
        ("run_3", DIR),
        ("version_0", DIR),
        ("step_1.5.pt", FILE),
        ("step_10k.pt", FILE),
        ("epoch_3_step_99999999999999999999999.pt", FILE),
        ("step_100.txt", FILE),
        ("step_100.json", FILE),
        (".step_100.pt", FILE),
        ("step_100.pt~", FILE),
        ("step\n100.pt", FILE),
        ("", FILE),
        ("", DIR),
    ];

    #[test]
    fn every_layout_is_read() {
        let mut layouts = HashSet::new();
        for (name, is_dir, layout, number, unit) in CHECKPOINTS {
            let got = parse(name, *is_dir).unwrap_or_else(|| panic!("{name}: not read"));
            assert_eq!((got.layout, got.number, got.unit), (*layout, *number, *unit), "{name}");
            layouts.insert(got.layout);
        }
        assert_eq!(layouts.len(), 17, "{layouts:?}");
    }

    #[test]
    fn what_is_no_checkpoint() {
        for (name, is_dir) in NO_CHECKPOINTS {
            assert_eq!(parse(name, *is_dir), None, "{name}");
        }
        let long = format!("checkpoint-{}1", "0".repeat(300));
        assert_eq!(parse(&long, DIR), None);
    }

    #[test]
    fn orbax_numbers_need_their_folder() {
        for parent in ["checkpoints", "checkpoint", "ckpt", "Checkpoints"] {
            let got = parse_in(parent, "0001000", DIR).unwrap();
            assert_eq!((got.number, got.unit, got.layout), (1000, Step, "orbax"));
        }
        assert_eq!(parse_in("runs", "1000", DIR), None);
        assert_eq!(parse_in("checkpoints", "1000", FILE), None);
        assert_eq!(parse_in("checkpoints", "1000.orbax-checkpoint-tmp-17", DIR), None);
        assert_eq!(parse_in("checkpoints", "checkpoint-5", DIR).unwrap().layout, "hf");
    }

    #[test]
    fn markers_show_a_whole_checkpoint() {
        let whole =
            |parent: &str, name: &str, files: &[&str]| is_complete(files, &parse_in(parent, name, DIR).unwrap());
        assert!(whole("", "checkpoint-5", &["model.safetensors", "trainer_state.json"]));
        assert!(whole("", "checkpoint-5", &["iter_0000005"]));
        assert!(whole("", "checkpoint-5", &["model.safetensors", "random_states_0.pkl"]));
        assert!(!whole("", "checkpoint-5", &["model.safetensors", "optimizer.pt"]));
        assert!(!whole("", "checkpoint-5", &[]));
        let (one, two) = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors");
        assert!(whole("", "checkpoint-5", &[one, two, "trainer_state.json"]));
        assert!(!whole("", "checkpoint-5", &[one, "trainer_state.json"]));
        assert!(whole("", "iter_0000005", &["mp_rank_00_000"]));
        assert!(!whole("", "iter_0000005", &["__0_0.distcp"]));
        assert!(whole("", "global_step5", &["mp_rank_00_model_states.pt"]));
        assert!(!whole("", "global_step5", &["zero_pp_rank_0_mp_rank_00_optim_states.pt"]));
        assert!(whole("", "global_step_5", &["actor"]));
        assert!(!whole("", "global_step_5", &[]));
        assert!(whole("", "step-5", &["__0_0.distcp", ".metadata"]));
        assert!(!whole("", "step-5", &["__0_0.distcp"]));
        assert!(whole("", "step5", &["train", "model_and_optim", ".metadata.json"]));
        assert!(!whole("", "step5", &["train", "model_and_optim"]));
        assert!(whole("", "step5-unsharded", &["config.yaml", "model.pt"]));
        assert!(whole("checkpoints", "5", &["items", "_CHECKPOINT_METADATA"]));
        assert!(!whole("checkpoints", "5", &["items"]));
        assert!(is_complete(&[], &parse("step_100.pt", FILE).unwrap()));
    }

    #[test]
    fn markers_beside_a_checkpoint() {
        let nemo = "m--step=9-consumed_samples=1.0";
        let layout = parse(nemo, DIR).unwrap();
        assert!(is_complete_beside(nemo, &layout, |_| false));
        assert!(!is_complete_beside(nemo, &layout, |name| name == "m--step=9-consumed_samples=1.0-unfinished"));
        let llm_c = "model_00005000.bin";
        let layout = parse(llm_c, FILE).unwrap();
        assert!(is_complete_beside(llm_c, &layout, |name| name == "DONE_00005000"));
        assert!(!is_complete_beside(llm_c, &layout, |_| false));
        let hf = parse("checkpoint-5", DIR).unwrap();
        assert!(is_complete_beside("checkpoint-5", &hf, |_| false));
    }

    #[test]
    fn no_cut_and_no_odd_name_panics() {
        let mut looked = 0;
        for (name, ..) in CHECKPOINTS {
            for cut in 0..=name.len() {
                for odd in ["", "é", "\u{202e}", "=", "-", "_", ".", "step=", "9"] {
                    let name = format!("{}{odd}{}", &name[..cut], &name[cut..]);
                    for is_dir in [DIR, FILE] {
                        if let Some(got) = parse_in("ckpt", &name, is_dir) {
                            assert!(!got.layout.is_empty());
                        }
                        looked += 1;
                    }
                }
            }
        }
        assert!(looked > 10_000);
    }
}
