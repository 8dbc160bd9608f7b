//! Which recorded series is what: the one table of metric names, step names and time names.
//!
//! # How a name is compared
//!
//! A name is lower-cased and split into *words* at space, `-`, `_`, `.`, `/`, `:` and brackets, so `grad-norm`, `Grad
//! Norm` and `grad/norm` are one name. Two kinds of boundary are told apart: `/`, `:` and `.` end a *parent*
//! (`train/`, `info.learner.`), everything else only ends a word; a `.` between two digits ends a word
//! (`grad_2.0_norm`). Charts that W&B exports name a column `<run> - <metric>`: only what follows the last ` - `
//! counts, without `__MIN` and `__MAX`.
//!
//! Suffixes that say how a value was summarised or when it was taken (`_avg`, `_step`, `_before_clip` ...) are taken
//! off first, at most two; each section of the table lists its own.
//!
//! # The notation of the table
//!
//! | sign | meaning |
//! |---|---|
//! | `_` | any boundary between two words |
//! | `/` | a boundary that ends a parent |
//! | `a\|b` | either word |
//! | `*`, `+` | any run of words, at least one word |
//! | `<layer>` | a word that names a part of a network (weight, layer, cnn ...) or holds a digit |
//! | `<part>` | such a word, digits not counted |
//! | `<number>` | a word of digits, or `inf` (the order of a norm) |
//! | `<eval>` | eval, val, valid, validation, test, dev ... |
//! | `<loss>` | a word that ends in `loss` |
//! | `<component>` | a network that is trained as a whole (actor, critic, generator ...) |
//!
//! Exact names and patterns must reach the end of the name; where they may start is the section's `Start`. Exclusions
//! are read like gitignore: without `/` they are compared with the last part of the name, with `/` with the whole
//! name after any parents, with a leading `/` with the whole name from its start. The first section that matches
//! decides.
//!
//! What the name alone cannot tell (many siblings, evaluation on the training set, clipped twins) is for [`resolve`].

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::str::FromStr;
use std::sync::LazyLock;

use super::checkpoint_name::Unit;

/// What a series means to the checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Total gradient norm, measured before clipping or of unknown place.
    GradNorm,
    /// Total gradient norm measured after clipping: it saturates, so spikes cannot be seen in it.
    GradNormPostClip,
    /// Gradient norm of one layer, parameter or sub-network: no total.
    LayerGradNorm,
    /// How many gradient or loss values were NaN (or non-finite, where the framework does not tell them apart).
    NanCount,
    /// How many gradient values were infinite.
    InfCount,
    /// The training loss.
    Loss,
    /// One term of the training loss.
    LossPart,
    /// A loss on held-out data, or an evaluation on the training set.
    EvalLoss,
    /// The dynamic loss scale of mixed-precision training.
    LossScale,
    /// Skipped updates: a flag or a count.
    Skipped,
    /// Divergence from a reference or earlier policy.
    Kl,
    /// Length of generated completions or episodes.
    CompletionLength,
    /// Reward, return, score or advantage.
    Reward,
    /// Learning rate.
    Lr,
    /// Entropy of the policy.
    Entropy,
}

impl Role {
    /// All roles, in the order of the documentation.
    pub const ALL: [Self; 15] = [
        Self::GradNorm,
        Self::GradNormPostClip,
        Self::LayerGradNorm,
        Self::NanCount,
        Self::InfCount,
        Self::Loss,
        Self::LossPart,
        Self::EvalLoss,
        Self::LossScale,
        Self::Skipped,
        Self::Kl,
        Self::CompletionLength,
        Self::Reward,
        Self::Lr,
        Self::Entropy,
    ];

    /// The name users write and read, in snake case.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::GradNorm => "grad_norm",
            Self::GradNormPostClip => "grad_norm_post_clip",
            Self::LayerGradNorm => "layer_grad_norm",
            Self::NanCount => "nan_count",
            Self::InfCount => "inf_count",
            Self::Loss => "loss",
            Self::LossPart => "loss_part",
            Self::EvalLoss => "eval_loss",
            Self::LossScale => "loss_scale",
            Self::Skipped => "skipped",
            Self::Kl => "kl",
            Self::CompletionLength => "completion_length",
            Self::Reward => "reward",
            Self::Lr => "lr",
            Self::Entropy => "entropy",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The text is no role; it is kept for the message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownRole(pub String);

impl fmt::Display for UnknownRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "got role {:?}, want one of ", self.0)?;
        for (i, role) in Role::ALL.iter().enumerate() {
            write!(f, "{}{role}", if i == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

impl std::error::Error for UnknownRole {}

impl FromStr for Role {
    type Err = UnknownRole;

    fn from_str(text: &str) -> Result<Self, UnknownRole> {
        Self::ALL.into_iter().find(|role| role.as_str() == text).ok_or_else(|| UnknownRole(text.to_owned()))
    }
}

/// How a row of the table is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A name, after an allowed prefix and before an allowed suffix.
    Exact,
    /// A shape of names.
    Pattern,
    /// A shape that never has the role.
    Excluded,
}

impl Kind {
    /// `exact`, `pattern` or `excluded`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Pattern => "pattern",
            Self::Excluded => "excluded",
        }
    }
}

/// One row of the table, for display.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The role, or `None` where an exclusion holds for all roles.
    pub role: Option<Role>,
    /// How the pattern is compared.
    pub kind: Kind,
    /// The name or shape, in the notation of this module.
    pub pattern: &'static str,
    /// Which framework writes it, or why it is excluded.
    pub note: &'static str,
}

struct Row {
    kind: Kind,
    pattern: &'static str,
    note: &'static str,
}

const fn exact(pattern: &'static str, note: &'static str) -> Row {
    Row { kind: Kind::Exact, pattern, note }
}

const fn pattern(pattern: &'static str, note: &'static str) -> Row {
    Row { kind: Kind::Pattern, pattern, note }
}

const fn never(pattern: &'static str, note: &'static str) -> Row {
    Row { kind: Kind::Excluded, pattern, note }
}

/// Where in a name the names of a section may start.
#[derive(Clone, Copy)]
enum Start {
    /// After any word.
    Anywhere,
    /// After a parent, and there after any of these words.
    Parent(&'static [&'static str]),
    /// At the beginning only.
    Whole,
}

struct Section {
    role: Option<Role>,
    start: Start,
    /// Sub-strings of which a lower-cased name holds at least one, or no row can match: most names are dismissed by
    /// these.
    hints: &'static [&'static str],
    suffixes: &'static [&'static str],
    rows: &'static [Row],
    /// Exclusions shared with other sections.
    excluded: &'static [Row],
}

/// How a gradient norm was summarised. `val` is the last value of an averaging meter here, not validation.
const NORM_SUFFIXES: &[&str] = &["avg", "mean", "val", "value", "step", "epoch"];

const PRE_CLIP_SUFFIXES: &[&str] = &[
    "avg",
    "mean",
    "val",
    "value",
    "step",
    "epoch",
    "l2",
    "raw",
    "unclipped",
    "preclip",
    "before_clip",
    "pre_clip",
    "before_clipping",
    "pre_clipping",
];

const LAYER_SUFFIXES: &[&str] = &[
    "avg",
    "mean",
    "val",
    "value",
    "step",
    "epoch",
    "l2",
    "raw",
    "unclipped",
    "clipped",
    "preclip",
    "postclip",
    "before_clip",
    "pre_clip",
    "after_clip",
    "post_clip",
    "before_clipping",
    "pre_clipping",
    "after_clipping",
    "post_clipping",
];

const LOSS_SUFFIXES: &[&str] = &[
    "avg", "average", "mean", "value", "step", "epoch", "iter", "batch", "sum", "total", "global", "running",
    "smoothed",
];

/// Words that may stand before a training loss and leave it the training loss.
const LOSS_PREFIXES: &[&str] = &[
    "train",
    "training",
    "epoch",
    "batch",
    "iter",
    "iteration",
    "step",
    "avg",
    "average",
    "mean",
    "running",
    "smoothed",
    "total",
    "global",
    "overall",
    "reduced",
];

const CONTEXT_SUFFIXES: &[&str] = &["avg", "mean", "value", "step", "epoch", "max"];

/// What looks like a gradient norm and is none.
const NO_GRADIENT_NORM: &[Row] = &[
    never(
        "max|min|clip|target|var|std|ema|log|num_+",
        "a limit, setting or statistic: max_grad_norm, clip_grad_norm, var_gnorm",
    ),
    never("*_max|min|target_grad|gradient|gradients_norm", "a limit: actor_max_grad_norm"),
    never(
        "*_threshold|limit|std|var|ema|ratio|coeff|coef|ms|time|max|min|median|count",
        "a setting, statistic or timer",
    ),
    never("*_param|params|parameter|parameters|update|updates_norm|norms", "norms of parameters and updates"),
    never("*_histogram|hist|zeros_*", "no norm"),
    never("<eval>_*", "measured on held-out data"),
    never("<eval>/*", "measured on held-out data"),
];

/// What looks like a loss and is none.
const NO_LOSS: &[Row] = &[
    never(
        "*_best|lowest|min|minimum|target|initial|init|prev|previous_*",
        "a best so far or a goal; often starts at infinity",
    ),
    never("*_frac|fraction|pct|percent|num|count|n|has|no_*", "a share, count or flag"),
    never("*_time|ms|sec|seconds|timing|elapsed", "a timer: loss_fn_time_ms"),
    never("*_weight|weights|coef|coeff|coefficient|scale|factor|fn|type|name|lr|threshold|patience", "a setting"),
    never("*_ratio|std|var|variance|spike|zscore|tokens|mask|masks|improvement|delta|rank", "a statistic or flag"),
    never("*_z_score", "a statistic"),
    never("*_scale|scaler_*", "the loss scale and its settings"),
    never("*_acc|accuracy|ppl|perplexity|clipfrac|f1", "another metric beside a loss"),
    never("*_explained_*", "explained variance (NaN before the first episode ends)"),
    never("*_clip_frac|fraction", "another metric beside a loss"),
];

/// What counts NaN somewhere else than in gradients and losses.
const NO_COUNT: &[Row] = &[
    never(
        "*_no|non|not|without|max|allowed|expected_nan|nans|inf|infs|nonfinite_*",
        "the opposite, or a setting: non_nan_count",
    ),
    never(
        "/*_reward|rewards|advantage|advantages|score|scores|return|returns|value|values_*",
        "NaN elsewhere is no damage of the gradients",
    ),
    never("/*_data|dataset|input|inputs|label|labels|feature|features|column|columns_*", "NaN of the data"),
    never("/*_<eval>_*", "counted on held-out data"),
    never("*_threshold|limit|patience|tolerance", "a setting"),
];

/// The table. Order matters: the first section that matches decides.
static TABLE: &[Section] = &[
    Section {
        role: None,
        start: Start::Anywhere,
        hints: &["samples", "config", "cfg", "hparam", "hyperparam", "args"],
        suffixes: &[],
        rows: &[
            never("/*_vs_samples", "Megatron-LM: twins whose step is a number of samples"),
            never("config|cfg|hparams|hparam|hyperparameters|args/*", "settings, not measurements"),
        ],
        excluded: &[],
    },
    // Names that only a total bears. They come first because a digit elsewhere in the name (policy_0/) is no layer
    // then.
    Section {
        role: Some(Role::GradNorm),
        start: Start::Anywhere,
        hints: &["norm"],
        suffixes: PRE_CLIP_SUFFIXES,
        rows: &[
            exact("total_grad_norm", "OLMo, OLMo-core (optim/total grad norm)"),
            exact("total_gradient_norm", "convention"),
            exact("global_grad_norm", "DeepSpeed"),
            exact("global_gradient_norm", "Tensor2Tensor"),
            exact("grad_norm_total", "Levanter (grad/norm/total)"),
            exact("grad_norm_global", "convention"),
            exact("grad|gradient_l2_norm", "convention"),
            exact("grad_gnorm", "RLlib, old stack (learner_stats/grad_gnorm)"),
            exact("grad|grads|gradient|gradients_global_norm", "optax and TensorFlow scripts"),
            pattern(
                "gradients_+_global_norm",
                "RLlib, new stack (learners/<module>/gradients_<optimizer>_global_norm)",
            ),
            pattern("grad_<number>_norm_total", "Lightning grad_norm(): grad_2_norm_total, grad_inf_norm_total"),
            pattern("grad_<number>_<number>_norm_total", "Lightning grad_norm(): grad_2.0_norm_total"),
            pattern("grad|gradient_norm|norms_<component>", "convention: grad_norm/actor, grad_norm_critic"),
            pattern("grad|grads|gradient|gradients_<component>_norm", "convention: gradients/actor_norm"),
            never("/*_<part>_*", "the total of one part of the network"),
        ],
        excluded: NO_GRADIENT_NORM,
    },
    Section {
        role: Some(Role::GradNormPostClip),
        start: Start::Anywhere,
        hints: &["norm"],
        suffixes: NORM_SUFFIXES,
        rows: &[
            exact("l2_norm_grad_global", "Composer OptimizerMonitor: read after clipping and the optimizer step"),
            never("/*_<part>_*", "the total of one part of the network"),
        ],
        excluded: NO_GRADIENT_NORM,
    },
    Section {
        role: Some(Role::LayerGradNorm),
        start: Start::Anywhere,
        hints: &["norm"],
        suffixes: LAYER_SUFFIXES,
        rows: &[
            pattern("<layer>_*_grad|grads|gradient|gradients_norm|norms", "convention: layer_3/grad_norm"),
            pattern("<layer>_*_gnorm|gradnorm|gradientnorm", "convention"),
            pattern("grad|grads|gradient|gradients_norm|norms_*_<layer>_*", "GPT-NeoX (gradient_norms/<param>)"),
            pattern("gnorm|gradnorm|gradientnorm_*_<layer>_*", "convention"),
            pattern("grad|grads|gradient|gradients_*_<layer>_*_norm|norms", "OLMo (optim/grad/<param>.norm)"),
            pattern("grad_<number>_norm_+", "Lightning grad_norm(): grad_2_norm/<param>"),
            pattern("grad_<number>_<number>_norm_+", "Lightning grad_norm(): grad_2.0_norm/<param>"),
            pattern("grad|grads|gradient|gradients_norm|norms/+", "Levanter (grad/norm/<path>), GPT-NeoX"),
            pattern("grad|grads|gradient|gradients/+_norm|norms", "convention: gradients/<module>_norm"),
            pattern("l2_norm_grad_+", "Composer OptimizerMonitor (l2_norm/grad/<param>)"),
            never("*_clip", "a setting"),
        ],
        excluded: NO_GRADIENT_NORM,
    },
    Section {
        role: Some(Role::GradNormPostClip),
        start: Start::Anywhere,
        hints: &["clip"],
        suffixes: NORM_SUFFIXES,
        rows: &[
            exact("grad_norm_post_clip", "rlprobe"),
            exact("grad_norm_after_clip", "trainscope"),
            exact("grad_norm_clipped", "convention"),
            pattern(
                "grad|grads|gradient|gradients_norm|norms_*_post|after_clip|clipping",
                "convention: critic_grad_norm_AFTER_clip",
            ),
            pattern("gnorm|gradnorm|gradientnorm_*_post|after_clip|clipping", "convention"),
            pattern("grad|grads|gradient|gradients_norm|norms_*_clipped|postclip", "convention"),
            pattern("gnorm|gradnorm|gradientnorm_*_clipped|postclip", "convention"),
            pattern("post|after_clip|clipping_*_grad|gradient_norm", "convention: post_clip_grad_norm"),
            pattern("clipped|postclip_*_grad|gradient_norm", "Tensor2Tensor (global_norm/clipped_gradient_norm)"),
            pattern("clipped|postclip_gnorm|gradnorm|gradientnorm", "convention"),
        ],
        excluded: NO_GRADIENT_NORM,
    },
    Section {
        role: Some(Role::GradNorm),
        start: Start::Anywhere,
        hints: &["norm"],
        suffixes: PRE_CLIP_SUFFIXES,
        rows: &[
            exact(
                "grad_norm",
                "HF Trainer, torchtitan, NeMo, Megatron-LM, verl (actor/), OpenRLHF (train/actor_), mmengine, rlprobe",
            ),
            exact("raw_grad_norm", "MaxText (learning/raw_grad_norm)"),
            exact("gradient|gradients|grads_norm", "convention"),
            exact("gnorm", "fairseq, Marian (gNorm)"),
            exact("gradnorm", "convention"),
            exact("gradientnorm", "convention"),
            exact("g_norm", "convention"),
            never("*_clip", "a setting: grad_norm_clip"),
        ],
        excluded: NO_GRADIENT_NORM,
    },
    Section {
        role: Some(Role::GradNorm),
        start: Start::Whole,
        hints: &["grad"],
        suffixes: &[],
        rows: &[exact("grad", "Demucs, SCNet: the norm under this bare name"), exact("train_grad", "Demucs, SCNet")],
        excluded: &[],
    },
    Section {
        role: Some(Role::NanCount),
        start: Start::Anywhere,
        hints: &["nan", "finite"],
        suffixes: &["total", "sum", "value"],
        rows: &[
            exact("nan_count", "rlprobe"),
            exact("count_nan", "convention"),
            exact("num|n_nan|nans", "convention"),
            exact("nan_grad|grads|gradient|gradients", "convention"),
            exact("grad|grads|gradient|gradients_nan|nans", "convention"),
            exact("nan_grad|gradient_count|steps", "convention"),
            exact("nan_iterations|iters|steps", "Megatron-LM (number of nan iterations)"),
            exact("nan_inf_count", "convention"),
            exact("nan_or_inf_count", "convention"),
            exact("grad_nan_inf_ratio", "trainscope: the share of the values, above 0 if any"),
            exact("nonfinite_count|steps|grads|gradients", "convention"),
            exact("non_finite_count|steps|grads|gradients", "convention"),
            exact("nonfinite_grad|gradient_count|steps", "verl-omni (train/nonfinite_grad_steps)"),
            exact("non_finite_grad|gradient_count|steps", "convention"),
            exact("num_nonfinite", "convention"),
            exact("frac_nonfinite_loss", "TRL: the share of non-finite losses that the filter of HF Trainer hid"),
            exact("frac_non_finite_loss", "TRL"),
        ],
        excluded: NO_COUNT,
    },
    Section {
        role: Some(Role::InfCount),
        start: Start::Anywhere,
        hints: &["inf"],
        suffixes: &["total", "sum", "value"],
        rows: &[
            exact("inf_count", "rlprobe"),
            exact("count_inf", "convention"),
            exact("num|n_inf|infs", "convention"),
            exact("inf_grad|grads|gradient|gradients", "convention"),
            exact("inf_grad|gradient_count|steps", "convention"),
            exact("grad|grads|gradient|gradients_inf|infs", "convention"),
        ],
        excluded: NO_COUNT,
    },
    Section {
        role: Some(Role::LossScale),
        start: Start::Anywhere,
        hints: &["scale"],
        suffixes: &["value", "avg", "mean", "step"],
        rows: &[
            exact(
                "loss_scale",
                "Megatron-LM (loss-scale), GPT-NeoX, NeMo, fairseq, DeepSpeed (Train/Samples/loss_scale)",
            ),
            exact("lossscale", "convention"),
            exact("loss_scaler", "convention"),
            exact("grad_scale", "icefall"),
            exact("grad_scaler_scale", "torch.amp.GradScaler"),
            exact("scaler_scale", "torch.amp.GradScaler"),
            exact("amp_scale", "torch.amp.GradScaler"),
            never("min|max|init|initial|target_*", "a setting"),
        ],
        excluded: &[],
    },
    Section {
        role: Some(Role::Skipped),
        start: Start::Anywhere,
        hints: &["skip", "found"],
        suffixes: &["total", "count", "sum", "value"],
        rows: &[
            exact("step|steps|update|updates|iteration|iterations_skipped", "OLMo-core (optim/step skipped)"),
            exact(
                "skipped_step|steps|update|updates|iter|iters|iteration|iterations|batches",
                "Levanter (optim/skipped_step), Megatron-LM (number of skipped iterations)",
            ),
            exact("num_skipped", "convention"),
            exact("found_inf", "torch.amp.GradScaler"),
            never("max|allowed_*", "a setting"),
        ],
        excluded: &[],
    },
    Section {
        role: Some(Role::Skipped),
        start: Start::Parent(&[]),
        hints: &["skipped", "overflow"],
        suffixes: &["total", "count"],
        rows: &[exact("skipped", "DeepSpeed (cumulative)"), exact("overflow|overflows", "DeepSpeed")],
        excluded: &[],
    },
    // Listed by name before the losses: the KL and entropy terms of these frameworks are called a loss and measure
    // context.
    Section {
        role: Some(Role::Kl),
        start: Start::Anywhere,
        hints: &["kl"],
        suffixes: CONTEXT_SUFFIXES,
        rows: &[
            exact("kl", "TRL, OpenRLHF, RLlib; rlprobe (kl_mean, kl_max)"),
            exact("approx_kl", "SB3 (train/approx_kl)"),
            exact("ppo_kl", "verl (actor/ppo_kl)"),
            exact("reward_kl_penalty", "verl (actor/reward_kl_penalty)"),
            exact("kl_penalty", "convention"),
            exact("kl_div|divergence", "rlwatch"),
            exact("mean_kl_loss", "RLlib, new stack"),
            never("target|max|min|init_*", "a setting"),
        ],
        excluded: &[],
    },
    Section {
        role: Some(Role::Entropy),
        start: Start::Anywhere,
        hints: &["entropy"],
        suffixes: CONTEXT_SUFFIXES,
        rows: &[
            exact("entropy", "TRL, verl (actor/entropy), RLlib, rlprobe (entropy_mean)"),
            exact("entropy_loss", "OpenRLHF, SB3 (train/entropy_loss), verl"),
            never("/*_cross|binary_entropy_*", "cross-entropy is a loss"),
            never("target|max|min|init_*", "a setting"),
        ],
        excluded: &[],
    },
    Section {
        role: Some(Role::EvalLoss),
        start: Start::Anywhere,
        hints: &["loss"],
        suffixes: LOSS_SUFFIXES,
        rows: &[
            exact("eval_loss", "HF Trainer"),
            exact("val_loss", "Lightning, Keras, nanoGPT (val/loss)"),
            exact("predict_loss", "LLaMA-Factory"),
            exact("valloss|validloss|testloss|evalloss|devloss", "convention"),
            pattern("<eval>_*_<loss>_*", "eval_<set>_loss, validation/ctc_loss"),
            pattern("<loss>_*_<eval>_*", "Megatron-LM (lm loss validation), loss/val"),
        ],
        excluded: NO_LOSS,
    },
    Section {
        role: Some(Role::EvalLoss),
        start: Start::Whole,
        hints: &["tel"],
        suffixes: &[],
        rows: &[exact("tel", "llm.c main.log")],
        excluded: &[],
    },
    Section {
        role: Some(Role::LossPart),
        start: Start::Anywhere,
        hints: &["loss"],
        suffixes: &["avg", "mean", "step", "epoch"],
        rows: &[pattern("loss|losses/value", "the loss of the value network; loss_value is the value of the loss")],
        excluded: NO_LOSS,
    },
    Section {
        role: Some(Role::Loss),
        start: Start::Parent(LOSS_PREFIXES),
        hints: &["loss"],
        suffixes: LOSS_SUFFIXES,
        rows: &[
            exact(
                "loss",
                "HF Trainer, torchtune and most others (train/loss), MaxText (learning/loss), verl (actor/loss)",
            ),
            exact("train_loss", "Lightning and scripts, DeepSpeed (Train/Samples/train_loss)"),
            exact("trainloss", "convention"),
            exact("reduced_train_loss", "NeMo"),
            exact("total_loss", "RLlib"),
            exact("global_avg_loss", "torchtitan (loss_metrics/global_avg_loss)"),
            exact("lm_loss", "Megatron-LM (lm loss), GPT-NeoX, MaxText"),
            exact("gpt_loss", "OpenRLHF SFT"),
            exact("epoch_loss", "Keras"),
            exact("batch_loss", "Keras"),
            exact("crossentropyloss", "OLMo (train/CrossEntropyLoss)"),
            exact("cross_entropy_loss", "convention"),
            exact("ce_loss", "OLMo-core (train/CE loss)"),
            exact("policy_loss", "OpenRLHF PPO, RLlib, CleanRL (losses/policy_loss)"),
            exact("pg_loss", "verl (actor/pg_loss)"),
            exact("loss_train", "convention"),
            exact("loss_train_total", "Composer (loss/train/total)"),
            exact("loss_total", "convention"),
            never(
                "critic|value|vf|kl|aux|auxiliary|discriminator|disc|reward|reg|regularization|regularizer|z/*",
                "one term of the loss",
            ),
        ],
        excluded: NO_LOSS,
    },
    Section {
        role: Some(Role::Loss),
        start: Start::Whole,
        hints: &["trl"],
        suffixes: &[],
        rows: &[exact("trl", "llm.c main.log")],
        excluded: &[],
    },
    Section {
        role: Some(Role::LossPart),
        start: Start::Anywhere,
        hints: &["loss"],
        suffixes: LOSS_SUFFIXES,
        rows: &[
            pattern(
                "<loss>",
                "fairseq (nll_loss), verl (critic/vf_loss), SB3 (train/value_loss), Dreamer and most others",
            ),
            pattern("loss_+", "mmengine (loss_<term>), Composer (loss/train/<term>), TRL PPO (loss/value_avg)"),
        ],
        excluded: NO_LOSS,
    },
    Section {
        role: Some(Role::Lr),
        start: Start::Anywhere,
        hints: &["lr", "learning", "rate"],
        suffixes: &[],
        rows: &[
            exact("lr", "verl (actor/lr), torchtune, NeMo, LLaMA-Factory, OpenRLHF (train/actor_lr), RLlib (cur_lr)"),
            exact(
                "learning_rate",
                "HF Trainer, Megatron-LM (learning-rate), MaxText, RLlib, Keras (epoch_learning_rate)",
            ),
            exact("learningrate", "convention"),
            pattern("lr_*", "Composer and Lightning (lr-<optimizer>/group<n>), OLMo-core (optim/LR (group <n>))"),
            pattern("lr0|lr1|lr2", "ESPnet (optim0_lr0)"),
            pattern("learning_rate_*", "OLMo (optim/learning_rate_group<n>)"),
            never(
                "*_schedule|scheduler|decay|warmup|mult|multiplier|factor|gamma|ratio|scale|type|name_*",
                "a setting",
            ),
            never("min|max|init|initial|base|target_*", "a setting"),
        ],
        excluded: &[],
    },
    Section {
        role: Some(Role::CompletionLength),
        start: Start::Anywhere,
        hints: &["len"],
        suffixes: &[],
        rows: &[
            pattern(
                "completion|completions_*_length|len",
                "TRL (completions/mean_length, completions/mean_terminated_length)",
            ),
            pattern("completion|completions_length|len_mean|min|max|p95", "rlprobe (completion_len_mean)"),
            exact("response_length|len", "OpenRLHF"),
            pattern("response|responses_length|len_mean|min|max", "verl (response_length/mean)"),
            exact("total_length", "OpenRLHF"),
            exact("episode|ep_len_mean", "SB3 (rollout/ep_len_mean), RLlib"),
            exact("episode_length", "convention"),
            never("max_completion|response|episode|prompt|new|total_*", "a setting"),
        ],
        excluded: &[],
    },
    Section {
        role: Some(Role::Reward),
        start: Start::Anywhere,
        hints: &["rew", "return", "adv", "score"],
        suffixes: &[],
        rows: &[
            exact("reward", "TRL, OpenRLHF"),
            pattern(
                "reward|rewards_+",
                "TRL (reward_std, rewards/<fn>/mean, rewards/chosen), verl (critic/rewards/mean), rlprobe",
            ),
            exact("mean|min|max_reward", "TRL RewardTrainer"),
            exact("frac_reward_zero_std", "TRL GRPO"),
            exact("ep_rew_mean", "SB3 (rollout/ep_rew_mean)"),
            exact("episode_reward|return_mean|min|max", "RLlib (env_runners/episode_return_mean)"),
            exact("return", "OpenRLHF"),
            pattern("critic_score|returns_*", "verl (critic/score/mean, critic/returns/mean)"),
            pattern("advantage|advantages_*", "verl (critic/advantages/mean)"),
            exact("adv_mean|std", "rlprobe"),
            exact("adv_zero_frac", "rlprobe"),
            never("*_coef|coeff|weight|weights|scale|time|ms", "a setting or timer"),
            never("/*_nan|nans|inf|infs_*", "a count of something else"),
        ],
        excluded: &[],
    },
];

/// The rows of the table in its order; exclusions shared by several sections of one role come once.
pub fn table() -> impl Iterator<Item = Entry> {
    TABLE.iter().enumerate().flat_map(|(i, section)| {
        let listed =
            TABLE[..i].iter().any(|other| other.role == section.role && std::ptr::eq(other.excluded, section.excluded));
        let shared = if listed { &[] } else { section.excluded };
        let entry = |row: &Row| Entry { role: section.role, kind: row.kind, pattern: row.pattern, note: row.note };
        section.rows.iter().chain(shared).map(entry)
    })
}

/// Words that name a part of a network.
const PARTS: &[&str] = &[
    "weight",
    "weights",
    "bias",
    "biases",
    "kernel",
    "layer",
    "layers",
    "layernorm",
    "block",
    "blocks",
    "encoder",
    "encoders",
    "decoder",
    "decoders",
    "cnn",
    "mlp",
    "ffn",
    "attn",
    "wte",
    "wpe",
    "head",
    "heads",
];

const EVAL: &[&str] = &[
    "eval",
    "evals",
    "evaluation",
    "val",
    "valid",
    "validation",
    "validate", // Comet's context
    "test",
    "testing",
    "dev",
    "heldout",
    "holdout",
];

/// Networks that are trained as a whole, each with a total of its own.
const COMPONENTS: &[&str] =
    &["actor", "critic", "policy", "value", "generator", "discriminator", "model", "student", "all", "overall"];

/// Names longer than this, or of more words than fit a mask, have no role: no framework writes them.
const MAX_NAME: usize = 512;
const MAX_WORDS: usize = 63;

#[derive(Clone, Copy)]
struct Word<'a> {
    text: &'a str,
    /// Whether a parent ends before this word.
    after_parent: bool,
}

/// Splits a lower-cased name into words. `None` if it has too many.
fn words(name: &str) -> Option<Vec<Word<'_>>> {
    let bytes = name.as_bytes();
    let digit = |i: Option<usize>| i.and_then(|i| bytes.get(i)).is_some_and(u8::is_ascii_digit);
    let mut words = Vec::new();
    let (mut start, mut after_parent) = (0, false);
    for i in 0..=bytes.len() {
        let (ends, parent) = match bytes.get(i) {
            None => (true, false),
            Some(b'/' | b':' | b'\\') => (true, true),
            Some(b'.') => (true, !(digit(i.checked_sub(1)) && digit(Some(i + 1)))),
            Some(b' ' | b'-' | b'_' | b'\t' | b'(' | b')' | b'[' | b']' | b',' | b'=' | b'@') => (true, false),
            Some(_) => (false, false),
        };
        if !ends {
            continue;
        }
        if start < i {
            if words.len() == MAX_WORDS {
                return None;
            }
            words.push(Word { text: &name[start..i], after_parent });
            after_parent = false;
        }
        after_parent |= parent;
        start = i + 1;
    }
    Some(words)
}

/// What follows the last ` - `, lower-cased: W&B names the columns of an exported chart `<run> - <metric>`, and the ends
/// of what its points stand for `<run> - <metric>__MIN` and `__MAX`.
fn metric_of(name: &str) -> String {
    let metric = name.rsplit(" - ").next().unwrap_or(name);
    without_end(metric).unwrap_or(metric).to_ascii_lowercase()
}

/// Ends of the names of a chart's smallest and largest values.
const ENDS: [&str; 2] = ["__MIN", "__MAX"];

fn without_end(name: &str) -> Option<&str> {
    ENDS.iter().find_map(|end| name.strip_suffix(end)).filter(|base| !base.is_empty())
}

/// The series in which a spike of `name` shows at least as well, if there is one: a point of a W&B chart stands for a
/// range of steps, of which `<metric>__MAX` holds the largest value, `<metric>__MIN` the smallest and `<metric>` a mean.
#[must_use]
pub fn bin_maximum(name: &str) -> Option<String> {
    let base = without_end(name).unwrap_or(name);
    (!name.ends_with(ENDS[1])).then(|| format!("{base}{}", ENDS[1]))
}

enum Element {
    Word(Vec<&'static str>),
    Layer,
    Part,
    Number,
    Eval,
    Loss,
    Component,
    /// Any run of words, with the least number of them.
    Run(bool),
}

impl Element {
    fn parse(text: &'static str) -> Self {
        match text {
            "*" => Self::Run(false),
            "+" => Self::Run(true),
            "<layer>" => Self::Layer,
            "<part>" => Self::Part,
            "<number>" => Self::Number,
            "<eval>" => Self::Eval,
            "<loss>" => Self::Loss,
            "<component>" => Self::Component,
            word => Self::Word(word.split('|').collect()),
        }
    }

    fn holds(&self, word: &str) -> bool {
        let part = || PARTS.contains(&word) || word.starts_with("embed");
        match self {
            Self::Word(any) => any.contains(&word),
            Self::Part => part(),
            // l1 and l2 say which norm it is.
            Self::Layer => part() || (word.bytes().any(|b| b.is_ascii_digit()) && word != "l1" && word != "l2"),
            Self::Number => word == "inf" || word.bytes().all(|b| b.is_ascii_digit()),
            Self::Eval => EVAL.contains(&word),
            Self::Loss => word.ends_with("loss"),
            Self::Component => COMPONENTS.contains(&word),
            Self::Run(_) => true,
        }
    }
}

/// What an exclusion is compared with; names and patterns use the whole name from the section's starts.
#[derive(Clone, Copy, PartialEq)]
enum Scope {
    LastPart,
    AfterParents,
    Whole,
}

struct Glob {
    scope: Scope,
    /// Each with whether a parent must end before it.
    elements: Vec<(bool, Element)>,
}

impl Glob {
    fn parse(pattern: &'static str) -> Self {
        let (rooted, body) = match pattern.strip_prefix('/') {
            Some(body) => (true, body),
            None => (false, pattern),
        };
        let scope = match (rooted, body.contains('/')) {
            (true, _) => Scope::Whole,
            (false, true) => Scope::AfterParents,
            (false, false) => Scope::LastPart,
        };
        let (mut elements, mut start, mut parent) = (Vec::new(), 0, false);
        for (i, b) in body.bytes().enumerate().chain([(body.len(), b'_')]) {
            if b == b'_' || b == b'/' {
                elements.push((parent, Element::parse(&body[start..i])));
                (start, parent) = (i + 1, b == b'/');
            }
        }
        Self { scope, elements }
    }

    /// Whether the pattern reaches from one of the start positions (bit n: before word n) to the end of the words.
    fn matches(&self, words: &[Word<'_>], starts: u64) -> bool {
        // Most patterns fail at the last word; seeing that first is what makes the table quick.
        if let (Some((_, last)), Some(word)) = (self.elements.last(), words.last())
            && !last.holds(word.text)
        {
            return false;
        }
        let mut at = starts;
        for (parent, element) in &self.elements {
            if at == 0 {
                return false;
            }
            let mut next = 0u64;
            if let Element::Run(some) = element {
                let mut open = false;
                for (n, word) in words.iter().enumerate() {
                    let here = at >> n & 1 == 1;
                    if here && !some && !parent {
                        next |= 1 << n;
                    }
                    open |= here && (!parent || word.after_parent);
                    if open {
                        next |= 1 << (n + 1);
                    }
                }
                if !some && !parent {
                    next |= at & 1 << words.len();
                }
            } else {
                for (n, word) in words.iter().enumerate() {
                    if at >> n & 1 == 1 && (!parent || word.after_parent) && element.holds(word.text) {
                        next |= 1 << (n + 1);
                    }
                }
            }
            at = next;
        }
        at >> words.len() & 1 == 1
    }

    /// An exclusion, compared as its scope says.
    fn excludes(&self, words: &[Word<'_>]) -> bool {
        match self.scope {
            Scope::Whole => self.matches(words, 1),
            Scope::AfterParents => self.matches(words, parent_starts(words)),
            Scope::LastPart => {
                let first = words.iter().rposition(|word| word.after_parent).unwrap_or(0);
                self.matches(&words[first..], 1)
            }
        }
    }
}

fn parent_starts(words: &[Word<'_>]) -> u64 {
    words.iter().enumerate().filter(|(n, word)| *n == 0 || word.after_parent).fold(0, |mask, (n, _)| mask | 1 << n)
}

impl Start {
    fn mask(self, words: &[Word<'_>]) -> u64 {
        match self {
            Self::Whole => 1,
            Self::Anywhere => u64::MAX >> (64 - words.len().max(1)),
            Self::Parent(prefixes) => {
                let mut mask = parent_starts(words);
                for n in 1..words.len() {
                    if mask >> (n - 1) & 1 == 1 && prefixes.contains(&words[n - 1].text) {
                        mask |= 1 << n;
                    }
                }
                mask
            }
        }
    }
}

struct Compiled {
    /// The distinct hints of all sections by their first byte, each with its bit.
    hints: Vec<Vec<(&'static [u8], u64)>>,
    sections: Vec<CompiledSection>,
}

struct CompiledSection {
    role: Option<Role>,
    start: Start,
    hints: u64,
    suffixes: Vec<Vec<&'static str>>,
    names: Vec<Glob>,
    excluded: Vec<Glob>,
}

static COMPILED: LazyLock<Compiled> = LazyLock::new(|| {
    let mut distinct: Vec<&'static str> = TABLE.iter().flat_map(|section| section.hints).copied().collect();
    distinct.sort_unstable();
    distinct.dedup();
    let bit = |hint: &str| distinct.iter().position(|one| *one == hint).map_or(0, |n| 1u64 << n);
    let mut hints = vec![Vec::new(); 256];
    for hint in &distinct {
        hints[usize::from(hint.as_bytes()[0])].push((hint.as_bytes(), bit(hint)));
    }
    let globs = |section: &'static Section, excluded: bool| {
        let rows = section.rows.iter().chain(section.excluded);
        rows.filter(|row| (row.kind == Kind::Excluded) == excluded).map(|row| Glob::parse(row.pattern)).collect()
    };
    let compile = |section: &'static Section| CompiledSection {
        role: section.role,
        start: section.start,
        hints: section.hints.iter().fold(0, |mask, hint| mask | bit(hint)),
        suffixes: section.suffixes.iter().map(|suffix| suffix.split('_').collect()).collect(),
        names: globs(section, false),
        excluded: globs(section, true),
    };
    Compiled { hints, sections: TABLE.iter().map(compile).collect() }
});

impl Compiled {
    /// The hints that a lower-cased name holds.
    fn hints_of(&self, name: &str) -> u64 {
        let bytes = name.as_bytes();
        let mut mask = 0;
        for (i, b) in bytes.iter().enumerate() {
            for (hint, bit) in &self.hints[usize::from(*b)] {
                if bytes[i..].starts_with(hint) {
                    mask |= bit;
                }
            }
        }
        mask
    }
}

/// The words without allowed suffixes, at most two (`_before_clip_avg`); never without any word.
fn strip<'w, 'a>(mut words: &'w [Word<'a>], suffixes: &[Vec<&'static str>]) -> &'w [Word<'a>] {
    for _ in 0..2 {
        let fits = |suffix: &&Vec<&'static str>| {
            let cut = words.len().saturating_sub(suffix.len());
            cut > 0 && words[cut..].iter().zip(*suffix).all(|(word, text)| word.text == *text)
        };
        let Some(longest) = suffixes.iter().filter(fits).map(Vec::len).max() else { break };
        words = &words[..words.len() - longest];
    }
    words
}

/// The role that a name alone tells, or `None`. [`resolve`] adds what the other series of the recording tell.
///
/// A bare `norm` has no role: it is a gradient norm in llm.c only, whose reader knows.
#[must_use]
pub fn role_of(name: &str) -> Option<Role> {
    if name.len() > MAX_NAME {
        return None;
    }
    let lower = metric_of(name);
    let hints = COMPILED.hints_of(&lower);
    if hints == 0 {
        return None;
    }
    let all = words(&lower)?;
    for section in COMPILED.sections.iter().filter(|section| section.hints & hints != 0) {
        let words = strip(&all, &section.suffixes);
        if words.is_empty() {
            return None;
        }
        let excluded = || section.excluded.iter().any(|glob| glob.excludes(words));
        let Some(role) = section.role else {
            if excluded() {
                return None;
            }
            continue;
        };
        let starts = section.start.mask(words);
        if section.names.iter().any(|glob| glob.matches(words, starts)) && !excluded() {
            return Some(role);
        }
    }
    None
}

/// Whether a name shows group-relative reinforcement learning, where a loss of exactly 0 is ordinary:
/// `frac_reward_zero_std`, `rewards/*`, `advantage*`.
#[must_use]
pub fn is_group_relative(name: &str) -> bool {
    let lower = metric_of(name);
    if name.len() > MAX_NAME || !["reward", "advantage"].iter().any(|hint| lower.contains(hint)) {
        return false;
    }
    let Some(words) = words(&lower) else { return false };
    let texts: Vec<&str> = words.iter().map(|word| word.text).collect();
    texts.ends_with(&["frac", "reward", "zero", "std"])
        || words.windows(2).any(|pair| pair[0].text == "rewards" && pair[1].after_parent)
        || texts.iter().any(|text| text.starts_with("advantage"))
}

/// A series as [`resolve`] sees it.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// The name as recorded.
    pub name: &'a str,
    /// From [`role_of`] or from the user.
    pub role: Option<Role>,
    /// The user's choice: never changed.
    pub fixed: bool,
    /// First recorded step, if steps are recorded.
    pub first_step: Option<i64>,
    /// Last recorded step.
    pub last_step: Option<i64>,
    /// Rows with a value.
    pub rows: u64,
}

/// More gradient norms than this under one shape of name are layers.
const MAX_TOTALS: usize = 8;

/// Words that say that and how a gradient norm was measured, not of what.
const NORM_WORDS: &[&str] = &[
    "grad",
    "grads",
    "gradient",
    "gradients",
    "norm",
    "norms",
    "gnorm",
    "gradnorm",
    "gradientnorm",
    "l2",
    "raw",
    "pre",
    "post",
    "before",
    "after",
    "clip",
    "clipped",
    "clipping",
    "unclipped",
    "preclip",
    "postclip",
    "avg",
    "mean",
    "val",
    "value",
    "step",
    "epoch",
];

/// Words that only a total bears.
const TOTAL_WORDS: &[&str] = &["total", "global", "gnorm"];

/// Parents that say where a value was logged, not of what.
const PLAIN_PREFIXES: &[&str] = &[
    "train",
    "trainer",
    "training",
    "optim",
    "optimizer",
    "learning",
    "learner",
    "debug",
    "metrics",
    "loss",
    "info",
    "stats",
];

/// Roles that only the neighbours of a series tell, one for each candidate, in their order:
/// - more than eight gradient norms under one shape of name are layers, no totals;
/// - `train/X` is an evaluation where `validation/X` or `test/X` was recorded at the same steps (AlgoPerf);
/// - a gradient norm is post-clip where its raw twin was recorded (MaxText:
///   `learning/grad_norm` beside `learning/raw_grad_norm`).
///
/// Whether a post-clip series has a pre-clip twin is left to the checks.
#[must_use]
pub fn resolve(series: &[Candidate<'_>]) -> Vec<Option<Role>> {
    let lower: Vec<String> = series.iter().map(|candidate| metric_of(candidate.name)).collect();
    let split: Vec<Vec<Word<'_>>> = lower.iter().map(|name| words(name).unwrap_or_default()).collect();
    let join = |words: &mut dyn Iterator<Item = &str>| words.collect::<Vec<_>>().join("_");
    let keys: Vec<String> = split.iter().map(|words| join(&mut words.iter().map(|word| word.text))).collect();
    let known: HashMap<&str, usize> = keys.iter().enumerate().map(|(i, key)| (key.as_str(), i)).collect();
    let mut roles: Vec<Option<Role>> = series.iter().map(|candidate| candidate.role).collect();

    let mut shapes: HashMap<(Role, String), Vec<usize>> = HashMap::new();
    for (i, candidate) in series.iter().enumerate() {
        let Some(role @ (Role::GradNorm | Role::GradNormPostClip)) = candidate.role else { continue };
        let texts = || split[i].iter().map(|word| word.text);
        let plain = |word: &str| NORM_WORDS.contains(&word) || PLAIN_PREFIXES.contains(&word);
        if candidate.fixed || texts().any(|word| TOTAL_WORDS.contains(&word)) || texts().all(plain) {
            continue;
        }
        let shape = join(&mut texts().filter(|word| NORM_WORDS.contains(word)));
        shapes.entry((role, shape)).or_default().push(i);
    }
    for members in shapes.values() {
        let distinct: HashSet<&str> = members.iter().map(|i| keys[*i].as_str()).collect();
        if distinct.len() > MAX_TOTALS {
            members.iter().for_each(|i| roles[*i] = Some(Role::LayerGradNorm));
        }
    }

    for (i, candidate) in series.iter().enumerate() {
        let words = &split[i];
        if candidate.fixed {
            continue;
        }
        match roles[i] {
            Some(Role::Loss | Role::LossPart) => {
                let twin = |held_out: &str| {
                    (0..words.len().saturating_sub(1)).any(|n| {
                        words[n].text == "train"
                            && words[n + 1].after_parent
                            && (n == 0 || words[n].after_parent)
                            && known
                                .get(
                                    join(
                                        &mut words
                                            .iter()
                                            .enumerate()
                                            .map(|(m, word)| if m == n { held_out } else { word.text }),
                                    )
                                    .as_str(),
                                )
                                .is_some_and(|other| same_rows(candidate, &series[*other]))
                    })
                };
                if twin("validation") || twin("test") {
                    roles[i] = Some(Role::EvalLoss);
                }
            }
            Some(Role::GradNorm) if words.iter().all(|word| word.text != "raw") => {
                let Some(at) = words.iter().position(|word| word.text.starts_with("grad")) else { continue };
                let texts = || words.iter().map(|word| word.text);
                let raw = join(&mut texts().take(at).chain(["raw"]).chain(texts().skip(at)));
                if known.get(raw.as_str()).is_some_and(|other| roles[*other] == Some(Role::GradNorm)) {
                    roles[i] = Some(Role::GradNormPostClip);
                }
            }
            _ => {}
        }
    }
    roles
}

fn same_rows(a: &Candidate<'_>, b: &Candidate<'_>) -> bool {
    a.rows > 0 && (a.first_step, a.last_step, a.rows) == (b.first_step, b.last_step, b.rows)
}

/// Names of the step, best first. Compared case-insensitively with separators normalised, a leading `_` kept: W&B's
/// `_step` counts calls of `log`, so the trainer's own step is preferred. `epoch` comes last: it repeats within an
/// epoch.
pub const STEP_NAMES: &[&str] = &[
    "step",                  // HF Trainer, Lightning, torchtitan, verl, MaxText, rlprobe, trackio
    "global_step",           // NeMo, Levanter, AlgoPerf
    "train/global_step",     // HF callbacks (W&B, trackio, SwanLab), OpenRLHF
    "trainer/global_step",   // Lightning (W&B)
    "training/global_step",  // verl
    "train/step",            // convention
    "iteration",             // Megatron-LM, ms-swift ("5/100")
    "iter",                  // nanoGPT, mmengine
    "global_step/max_steps", // ms-swift ("5/100")
    "current_steps",         // LLaMA-Factory
    "num_updates",           // fairseq
    "updates",               // convention
    "training_iteration",    // RLlib
    "ray/tune/training_iteration",
    "training_step",
    "optimizer_step",
    "update_step",
    "iterations",
    "step_num",
    "n_iter",
    "_step",      // W&B
    "time/batch", // Composer
    "batch",
    "timesteps_total",      // RLlib
    "time/total_timesteps", // SB3
    "total_timesteps",
    "num_env_steps",
    "env_steps",
    "consumed_samples", // NeMo
    "samples",
    "consumed_tokens",
    "num_tokens", // TRL
    "epoch",      // Keras
    "train/epoch",
];

/// Place of a name in [`STEP_NAMES`] (0 is best), or `None` if it names no step.
#[must_use]
pub fn step_rank(name: &str) -> Option<usize> {
    STEP_NAMES.iter().position(|step| same_column(step, name))
}

/// What a step of this name counts; unknown names count steps.
#[must_use]
pub fn step_unit(name: &str) -> Unit {
    let lower = name.to_ascii_lowercase();
    let split = words(&lower).unwrap_or_default();
    let has = |any: &[&str]| split.iter().any(|word| any.contains(&word.text));
    if has(&["timesteps", "env", "frames"]) {
        Unit::EnvSteps
    } else if has(&["samples", "sequences"]) {
        Unit::Samples
    } else if has(&["tokens"]) {
        Unit::Tokens
    } else if has(&["epoch", "epochs"]) {
        Unit::Epoch
    } else if has(&["batch", "batches"]) {
        Unit::Batch
    } else {
        Unit::Step
    }
}

/// Whether a step of this name may be text of the form `10/438` (ms-swift).
#[must_use]
pub fn is_fraction_step(name: &str) -> bool {
    ["global_step/max_steps", "iteration"].iter().any(|step| same_column(step, name))
}

/// Names of a wall time. A bare `time` is not among them: mmengine, timm and others write a duration there.
pub const TIME_NAMES: &[&str] =
    &["timestamp", "_timestamp", "wall_time", "walltime", "unix_time", "datetime", "ts", "logged_at", "created_at"];

/// Whether a column holds the wall time of its row.
#[must_use]
pub fn is_time(name: &str) -> bool {
    TIME_NAMES.iter().any(|time| same_column(time, name))
}

/// Columns that hold the run of a row, the best first: ids before names, which need not be unique.
const RUN_NAMES: &[&str] = &[
    "run_id",
    "run_uuid",
    "runid",
    "run",
    "run_name",
    "trial_id",
    "trial",
    "trial_name",
    "experiment_id",
    "experiment",
    "experiment_name",
    "exp_id",
    "exp_name",
];

/// Columns of long tables that hold the name of a metric (MLflow's `key`, polars' and pandas' `variable`) ...
const METRIC_NAME_NAMES: &[&str] =
    &["metric", "metric_name", "key", "tag", "name", "variable", "metric_key", "metric_path", "attribute_path"];

/// ... and its value.
const METRIC_VALUE_NAMES: &[&str] = &["value", "metric_value", "val", "float_value"];

fn rank_in(names: &[&str], name: &str) -> Option<usize> {
    names.iter().position(|known| same_column(known, name))
}

/// How well a column of this name says which run a row belongs to (0 is best), or `None` if it does not.
#[must_use]
pub fn run_rank(name: &str) -> Option<usize> {
    rank_in(RUN_NAMES, name)
}

/// The same for the column of a long table that holds metric names.
#[must_use]
pub fn metric_name_rank(name: &str) -> Option<usize> {
    rank_in(METRIC_NAME_NAMES, name)
}

/// The same for the column of a long table that holds values.
#[must_use]
pub fn metric_value_rank(name: &str) -> Option<usize> {
    rank_in(METRIC_VALUE_NAMES, name)
}

/// Equal but for case and which separators are used.
fn same_column(a: &str, b: &str) -> bool {
    let fold = |b: u8| if matches!(b, b' ' | b'-' | b'.' | b'/') { b'_' } else { b.to_ascii_lowercase() };
    a.len() == b.len() && a.bytes().map(fold).eq(b.bytes().map(fold))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(rows: &[(&str, &str)]) {
        assert!(!rows.is_empty());
        let wrong: Vec<String> = rows
            .iter()
            .filter_map(|(want, name)| {
                let got = role_of(name).map_or("-", Role::as_str);
                (got != *want).then(|| format!("{name}: got {got}, want {want}"))
            })
            .collect();
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    /// Every framework of FORMATS G1: what it writes, and the role.
    #[test]
    fn optimisation_metrics_of_the_frameworks() {
        check(&[
            ("grad_norm", "grad_norm"),
            ("loss", "loss"),
            ("lr", "learning_rate"),
            ("grad_norm", "train/grad_norm"),
            ("loss", "train/loss"),
            ("lr", "train/learning_rate"),
            ("loss_scale", "Train/Samples/loss_scale"),
            ("loss", "Train/Samples/train_loss"),
            ("lr", "Train/Samples/lr"),
            ("lr", "lr"),
            ("grad_norm", "grad-norm"),
            ("-", "grad-norm vs samples"),
            ("loss_scale", "loss-scale"),
            ("-", "loss-scale vs samples"),
            ("loss", "lm loss"),
            ("-", "lm loss vs samples"),
            ("eval_loss", "lm loss validation"),
            ("-", "lm loss validation ppl"),
            ("-", "lm loss validation vs samples"),
            ("lr", "learning-rate"),
            ("-", "learning-rate vs samples"),
            ("grad_norm", "grad norm"),
            ("skipped", "number of skipped iterations"),
            ("nan_count", "number of nan iterations"),
            ("loss_scale", "loss scale"),
            ("lr", "learning rate"),
            ("-", "params-norm"),
            ("-", "params norm"),
            ("-", "num-zeros"),
            ("-", "num zeros"),
            ("-", "max_attention_logit"),
            ("layer_grad_norm", "gradient_norms/2.attention.dense.weight"),
            ("layer_grad_norm", "gradient_norms/layer.0.weight"),
            ("-", "parameter_norms/2.attention.dense.weight"),
            ("-", "pct_grad_zeros/2.attention.dense.weight"),
            ("loss_scale", "train/loss_scale"),
            ("loss", "train/lm_loss"),
            ("eval_loss", "val/loss"),
            ("loss", "loss_metrics/global_avg_loss"),
            ("loss_part", "loss_metrics/global_max_loss"),
            ("grad_norm", "gnorm"),
            ("loss_scale", "loss_scale"),
            ("loss_part", "nll_loss"),
            ("-", "clip"),
            ("grad_norm", "actor/grad_norm"),
            ("grad_norm", "critic/grad_norm"),
            ("loss", "actor/pg_loss"),
            ("loss", "actor/loss"),
            ("loss_part", "critic/vf_loss"),
            ("lr", "actor/lr"),
            ("lr", "critic/lr"),
            ("grad_norm", "train/actor_grad_norm"),
            ("grad_norm", "train/critic_grad_norm"),
            ("loss", "train/policy_loss"),
            ("loss_part", "train/critic_loss"),
            ("lr", "train/actor_lr"),
            ("loss", "train/loss_mean"),
            ("loss", "train/gpt_loss"),
            ("layer_grad_norm", "l2_norm/grad/model.layers.0.weight"),
            ("loss", "reduced_train_loss"),
            ("-", "consumed_samples"),
            ("grad_norm_post_clip", "l2_norm/grad/global"),
            ("layer_grad_norm", "l2_norm/grad/transformer.final"),
            ("-", "l2_norm/moment/model.0.weight"),
            ("-", "l2_norm/param/model.0.weight"),
            ("-", "l2_norm/update/model.0.weight"),
            ("loss", "loss/train/total"),
            ("loss_part", "loss/train/lbl"),
            ("lr", "lr-DecoupledAdamW/group0"),
            ("grad_norm", "optim/total_grad_norm"),
            ("layer_grad_norm", "optim/grad/transformer.wte.weight.norm"),
            ("-", "optim/grad/transformer.wte.weight.min"),
            ("-", "optim/grad/transformer.wte.weight.max"),
            ("-", "optim/grad/transformer.wte.weight.avg"),
            ("-", "optim/clipping_rate"),
            ("loss", "train/CrossEntropyLoss"),
            ("loss_part", "train/ZLoss"),
            ("lr", "optim/learning_rate_group0"),
            ("grad_norm", "optim/total grad norm"),
            ("skipped", "optim/step skipped"),
            ("-", "spike/SpikeScore"),
            ("loss", "train/CE loss"),
            ("loss_part", "train/Z loss"),
            ("-", "train/PPL"),
            ("lr", "optim/LR (group 0)"),
            ("-", "norm"),
            ("loss", "trl"),
            ("eval_loss", "tel"),
            ("loss", "train_loss"),
            ("eval_loss", "val_loss"),
            ("grad_norm", "grad/norm/total"),
            ("layer_grad_norm", "grad/norm/transformer.layers.0.attn"),
            ("layer_grad_norm", "grad/norm/embeddings"),
            ("-", "params/norm/total"),
            ("skipped", "optim/skipped_step"),
            ("-", "optim/pre_clip_update_norm"),
            ("-", "optim/post_clip_update_norm"),
            ("lr", "optim/learning_rate"),
            ("grad_norm", "learning/raw_grad_norm"),
            ("grad_norm", "learning/grad_norm"),
            ("loss", "learning/loss"),
            ("loss", "learning/lm_loss"),
            ("lr", "learning/current_learning_rate"),
            ("-", "learning/param_norm"),
            ("grad_norm", "grad_2.0_norm_total"),
            ("grad_norm", "grad_inf_norm_total"),
            ("layer_grad_norm", "grad_2.0_norm/encoder.weight"),
            ("layer_grad_norm", "grad_2.0_norm/fc"),
            ("loss", "train_loss_step"),
            ("loss", "train_loss_epoch"),
            ("lr", "lr-AdamW"),
            ("loss_part", "loss_cls"),
            ("loss", "epoch_loss"),
            ("loss", "batch_loss"),
            ("lr", "epoch_learning_rate"),
            ("grad_norm", "info/learner/default_policy/learner_stats/grad_gnorm"),
            ("grad_norm", "info/learner/policy_0/learner_stats/grad_gnorm"),
            ("loss", "info/learner/default_policy/learner_stats/total_loss"),
            ("loss", "info/learner/default_policy/learner_stats/policy_loss"),
            ("loss_part", "info/learner/default_policy/learner_stats/vf_loss"),
            ("lr", "info/learner/default_policy/learner_stats/cur_lr"),
            ("grad_norm", "learners/default_policy/gradients_default_optimizer_global_norm"),
            ("grad_norm", "learners/p1/gradients_default_optimizer_global_norm"),
            ("loss", "learners/default_policy/total_loss"),
            ("lr", "learners/default_policy/default_optimizer_learning_rate"),
            ("grad_norm_post_clip", "grad_norm_post_clip"),
            ("nan_count", "nan_count"),
            ("inf_count", "inf_count"),
            ("grad_norm", "grad_norm_before_clip"),
            ("grad_norm_post_clip", "grad_norm_after_clip"),
            ("nan_count", "layers/0/grad_nan_inf_ratio"),
            ("-", "loss_spike"),
            ("-", "gradients/transformer.h.0.attn.weight"),
        ]);
    }

    /// Every framework of FORMATS G2.
    #[test]
    fn context_metrics_of_the_frameworks() {
        check(&[
            ("kl", "kl"),
            ("entropy", "entropy"),
            ("completion_length", "completions/mean_length"),
            ("completion_length", "completions/min_length"),
            ("completion_length", "completions/max_length"),
            ("completion_length", "completions/mean_terminated_length"),
            ("-", "completions/clipped_ratio"),
            ("reward", "reward"),
            ("reward", "reward_std"),
            ("reward", "rewards/accuracy/mean"),
            ("reward", "train/rewards/accuracy/std"),
            ("reward", "frac_reward_zero_std"),
            ("-", "clip_ratio/low_mean"),
            ("-", "sampling/importance_sampling_ratio/mean"),
            ("reward", "rewards/chosen"),
            ("reward", "rewards/margins"),
            ("reward", "min_reward"),
            ("reward", "mean_reward"),
            ("reward", "max_reward"),
            ("-", "logps/chosen"),
            ("kl", "actor/ppo_kl"),
            ("kl", "actor/reward_kl_penalty"),
            ("entropy", "actor/entropy"),
            ("completion_length", "response_length/mean"),
            ("completion_length", "response_length/max"),
            ("-", "response_length/clip_ratio"),
            ("-", "prompt_length/mean"),
            ("reward", "critic/score/mean"),
            ("reward", "critic/rewards/mean"),
            ("reward", "critic/advantages/mean"),
            ("reward", "critic/returns/mean"),
            ("-", "critic/values/mean"),
            ("-", "critic/vf_explained_var"),
            ("-", "actor/pg_clipfrac"),
            ("entropy", "entropy_loss"),
            ("completion_length", "response_length"),
            ("completion_length", "total_length"),
            ("reward", "return"),
            ("kl", "train/approx_kl"),
            ("entropy", "train/entropy_loss"),
            ("completion_length", "rollout/ep_len_mean"),
            ("reward", "rollout/ep_rew_mean"),
            ("-", "train/clip_fraction"),
            ("-", "train/explained_variance"),
            ("kl", "learners/default_policy/mean_kl_loss"),
            ("completion_length", "episode_len_mean"),
            ("reward", "episode_reward_mean"),
            ("reward", "env_runners/episode_return_mean"),
            ("kl", "kl_mean"),
            ("kl", "kl_max"),
            ("entropy", "entropy_mean"),
            ("completion_length", "completion_len_mean"),
            ("completion_length", "completion_len_p95"),
            ("completion_length", "completion_len_max"),
            ("reward", "reward_mean"),
            ("-", "ratio_p95"),
        ]);
    }

    #[test]
    fn names_seen_in_the_wild() {
        check(&[
            ("grad_norm", "raw_grad_norm"),
            ("grad_norm", "model_grad_norm"),
            ("grad_norm", "world_model_grad_norm"),
            ("grad_norm", "actor_grad_norm"),
            ("grad_norm", "value_grad_norm"),
            ("grad_norm", "gNorm"),
            ("grad_norm", "total_grad_norm"),
            ("grad_norm", "Gradient Norm"),
            ("grad_norm", "Grad"),
            ("grad_norm", "train/grad"),
            ("grad_norm", "train_grad_norm"),
            ("grad_norm", "GRAD_NORM"),
            ("grad_norm", "grad_norm_avg"),
            ("grad_norm", "grad_norm_val"),
            ("grad_norm", "grad_norm/mean"),
            ("grad_norm", "grad_norm_before_clip_avg"),
            ("-", "max_grad_norm_value"),
            ("grad_norm", "info/grad_norm"),
            ("grad_norm", "ray/tune/info/learner/grad_gnorm"),
            ("grad_norm", "info.learner.grad_gnorm"),
            ("grad_norm", "debug/critic_grad_norm_BEFORE_clip"),
            ("grad_norm", "grad_norm/actor"),
            ("grad_norm", "gradients/actor_norm"),
            ("grad_norm", "l2_grad_norm"),
            ("grad_norm", "global_norm/gradient_norm"),
            ("grad_norm", "fresh-sea-19 - train/grad_norm"),
            ("grad_norm", "fresh-sea-19 - train/grad_norm__MAX"),
            ("grad_norm", "train/grad_norm__MIN"),
            ("loss", "Group: a - b - train/loss__MIN"),
            ("nan_count", "nan_count__MAX"),
            ("-", "train/max_grad_norm__MAX"),
            ("-", "__MAX"),
            ("grad_norm_post_clip", "debug/critic_grad_norm_AFTER_clip"),
            ("grad_norm_post_clip", "grad_norm_clipped"),
            ("grad_norm_post_clip", "global_norm/clipped_gradient_norm"),
            ("grad_norm_post_clip", "post_clip_grad_norm"),
            ("layer_grad_norm", "debug/actor_cnn_grad_norm_AFTER_clip"),
            ("layer_grad_norm", "gradients/actor_mlp_norm"),
            ("layer_grad_norm", "gradients/critic_cnn_norm"),
            ("layer_grad_norm", "grad_norm/layers/3"),
            ("layer_grad_norm", "grad_norm_encoder"),
            ("layer_grad_norm", "encoder/total_grad_norm"),
            ("layer_grad_norm", "lm_head_grad_norm"),
            ("-", "var_gnorm"),
            ("-", "ray/tune/info/learner/var_gnorm"),
            ("-", "ray/tune/info/grad_time_ms"),
            ("-", "info/weights_norm"),
            ("-", "info/update_ratio"),
            ("-", "debug/critic_grad_clip_ratio"),
            ("-", "alerts/critic_gradient_explosion_warning"),
            ("loss", "loss_avg"),
            ("loss", "loss_value"),
            ("loss", "avg_loss"),
            ("loss", "loss_mean"),
            ("loss", "loss_step"),
            ("loss", "loss_epoch"),
            ("loss", "Loss"),
            ("loss", "losses/policy_loss"),
            ("loss_part", "losses/value_loss"),
            ("kl", "losses/approx_kl"),
            ("-", "losses/explained_variance"),
            ("-", "loss/explained_variance"),
            ("-", "losses/clipfrac"),
            ("loss_part", "critic/loss"),
            ("loss_part", "kl/loss"),
            ("loss_part", "kl_loss"),
            ("loss_part", "actor_loss"),
            ("loss_part", "train/actor_loss"),
            ("loss_part", "world_model_loss"),
            ("loss_part", "reward_loss"),
            ("loss_part", "train/policy_gradient_loss"),
            ("loss_part", "distillation_loss_avg"),
            ("loss_part", "train/ctc_loss"),
            ("loss_part", "loss_q0"),
            ("loss_part", "g_loss"),
            ("loss_part", "grad_norm_loss"),
            ("loss_part", "loss/value_avg"),
            ("loss_part", "loss/value"),
            ("loss_part", "loss/policy_avg"),
            ("eval_loss", "eval_loss"),
            ("eval_loss", "eval_g0_loss"),
            ("eval_loss", "eval_loss_q0"),
            ("eval_loss", "validation/ctc_loss"),
            ("eval_loss", "test/loss"),
            ("eval_loss", "validate_loss"),
            ("eval_loss", "loss/val"),
            ("eval_loss", "predict_loss"),
            ("eval_loss", "dev_loss"),
            ("-", "eval_runtime"),
            ("-", "best_val_loss"),
            ("-", "best_loss"),
            ("loss", "cross_entropy_loss"),
            ("-", "cross_entropy"),
            ("nan_count", "train/nonfinite_grad_steps"),
            ("nan_count", "frac_nonfinite_loss"),
            ("nan_count", "frac_non_finite_loss"),
            ("loss_scale", "train/grad_scale"),
            ("kl", "train/reverse_kl"),
            ("lr", "optim0_lr0"),
            ("-", "edge/nan_inf"),
            ("-", "total_flos"),
        ]);
    }

    #[test]
    fn traps() {
        check(&[
            ("-", "nonan_count"),
            ("-", "non_nan_count"),
            ("-", "no_nan_count"),
            ("-", "rewards/nan_count"),
            ("-", "dataset/nan_count"),
            ("-", "max_nan_count"),
            ("-", "step_avg:nanms"),
            ("-", "nanoGPT"),
            ("-", "grad_norm_threshold"),
            ("-", "grad_norm/threshold"),
            ("-", "num_zeros"),
            ("-", "grad_norm_std"),
            ("-", "grad_norm.std"),
            ("-", "grad_norm_ema"),
            ("-", "grad_norm_ratio"),
            ("-", "grad_norm_coeff"),
            ("-", "grad_norm_clip"),
            ("-", "clip_grad_norm"),
            ("-", "max_grad_norm"),
            ("-", "train/max_grad_norm"),
            ("-", "actor_max_grad_norm"),
            ("-", "target_grad_norm"),
            ("-", "var_grad_norm"),
            ("-", "grad_norm vs samples"),
            ("-", "config/grad_norm"),
            ("-", "config.grad_norm"),
            ("-", "info/config/optimizer/grad_norm"),
            ("-", "hparams/grad_norm"),
            ("-", "hparams/loss"),
            ("-", "config/lr"),
            ("-", "param_norm"),
            ("-", "weight_norm"),
            ("-", "update_norm"),
            ("-", "grad_norm_time"),
            ("-", "grad_norm_ms"),
            ("-", "grad_norm_exp_avg"),
            ("-", "grad_norm_histogram"),
            ("-", "grad_norm_foo"),
            ("-", "eval/grad_norm"),
            ("-", "val_grad_norm"),
            ("-", "test/grad_norm"),
            ("-", "grad_clip"),
            ("-", "norm"),
            ("-", "train/norm"),
            ("-", "layer_norm"),
            ("-", "loss_fn_time_ms"),
            ("-", "lossless"),
            ("-", "loss_weight"),
            ("-", "loss/std"),
            ("-", "num_loss_tokens"),
            ("-", "min_loss_scale"),
            ("-", "loss_scale_window"),
            ("-", "kl_coef"),
            ("-", "target_kl"),
            ("-", "target_entropy"),
            ("-", "skipped samples"),
            ("-", "lr_scheduler_type"),
            ("-", "trlx"),
            ("-", "flow_rate_x"),
            ("-", ""),
            ("-", "///"),
            ("-", " - "),
        ]);
    }

    #[test]
    fn each_exact_name_has_its_role() {
        let mut looked = 0;
        for entry in table().filter(|entry| entry.kind == Kind::Exact) {
            let mut names = vec![String::new()];
            for word in entry.pattern.split('_') {
                names = names
                    .iter()
                    .flat_map(|name| {
                        word.split('|')
                            .map(move |one| if name.is_empty() { one.to_owned() } else { format!("{name}_{one}") })
                    })
                    .collect();
            }
            for name in names {
                assert_eq!(role_of(&name), entry.role, "{name}");
                assert_eq!(role_of(&name.to_uppercase()), entry.role, "{name}");
                for other in ["-", " ", ".", "/"] {
                    let bare = name.split('_').any(|word| EVAL.contains(&word));
                    let twin = name.replace('_', other);
                    // A `/` makes a held-out set a parent, which means the same.
                    assert!(role_of(&twin) == entry.role || bare, "{twin}");
                }
                looked += 1;
            }
        }
        assert!(looked > 120, "{looked}");
    }

    #[test]
    fn table_rows_are_well_formed() {
        let mut kinds = HashMap::new();
        for entry in table() {
            assert!(!entry.pattern.is_empty() && !entry.note.is_empty());
            assert!(entry.role.is_some() || entry.kind == Kind::Excluded);
            *kinds.entry(entry.kind.as_str()).or_insert(0) += 1;
            for element in entry.pattern.trim_start_matches('/').split(['_', '/']) {
                let known =
                    ["*", "+", "<layer>", "<part>", "<number>", "<eval>", "<loss>", "<component>"].contains(&element);
                let plain = element.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'|');
                assert!(known || (plain && !element.split('|').any(str::is_empty)), "{}: {element:?}", entry.pattern);
            }
        }
        assert_eq!(kinds.len(), 3);
        let with_role: HashSet<Role> = table().filter_map(|entry| entry.role).collect();
        assert_eq!(with_role.len(), Role::ALL.len());
    }

    #[test]
    fn hints_lose_nothing() {
        // A name that a section's rows match must hold one of its hints, or the shortcut would hide it.
        let mut looked = 0;
        for section in TABLE {
            for row in section.rows.iter().filter(|row| row.kind == Kind::Exact) {
                for one in row.pattern.split('_').map(|word| word.split('|').collect::<Vec<_>>()).fold(
                    vec![String::new()],
                    |names, any| {
                        names.iter().flat_map(|name| any.iter().map(move |one| format!("{name}_{one}"))).collect()
                    },
                ) {
                    assert!(section.hints.iter().any(|hint| one.contains(hint)), "{one}");
                    looked += 1;
                }
            }
        }
        assert!(looked > 120);
    }

    #[test]
    fn roles_are_named() {
        let names: HashSet<&str> = Role::ALL.iter().map(|role| role.as_str()).collect();
        assert_eq!(names.len(), Role::ALL.len());
        for role in Role::ALL {
            assert_eq!(role.as_str().parse(), Ok(role));
            assert_eq!(role.to_string(), role.as_str());
        }
        let error = "norm".parse::<Role>().unwrap_err().to_string();
        assert!(error.starts_with("got role \"norm\", want one of grad_norm, "), "{error}");
    }

    #[test]
    fn odd_names_never_panic() {
        let long = "a/".repeat(10_000);
        assert_eq!(role_of(&long), None);
        assert_eq!(role_of(&"grad_norm/".repeat(40)), None);
        assert_eq!(role_of(&format!("{}grad_norm", "x/".repeat(62))), None, "more words than a mask holds");
        assert_eq!(role_of(&format!("{}grad_norm", "x/".repeat(61))), Some(Role::GradNorm));
        for name in ["grad_norm", "gradients/actor_mlp_norm", "eval_loss", "l2_norm/grad/global"] {
            for cut in 0..=name.len() {
                for odd in ["é", "\u{202e}", "/", "_", ".", "0.0", " - ", "損失"] {
                    let name = format!("{}{odd}{}", &name[..cut], &name[cut..]);
                    assert_eq!(role_of(&name), role_of(&name.to_ascii_uppercase()), "{name}");
                }
            }
        }
    }

    fn candidate(name: &str, first: i64, last: i64, rows: u64) -> Candidate<'_> {
        Candidate { name, role: role_of(name), fixed: false, first_step: Some(first), last_step: Some(last), rows }
    }

    #[test]
    fn more_than_eight_siblings_are_layers() {
        let names: Vec<String> = (b'a'..b'i').map(|c| format!("{}_grad_norm", char::from(c))).collect();
        let mut series: Vec<Candidate<'_>> = names.iter().map(|name| candidate(name, 0, 9, 10)).collect();
        series.push(candidate("grad_norm", 0, 9, 10));
        series.push(candidate("train/grad_norm", 0, 9, 10));
        assert!(resolve(&series).iter().all(|role| *role == Some(Role::GradNorm)), "eight are totals");
        series.push(candidate("i_grad_norm", 0, 9, 10));
        series.push(candidate("total_grad_norm", 0, 9, 10));
        let roles = resolve(&series);
        assert_eq!(roles.iter().filter(|role| **role == Some(Role::LayerGradNorm)).count(), 9);
        for (candidate, role) in series.iter().zip(&roles) {
            let total = ["grad_norm", "train/grad_norm", "total_grad_norm"].contains(&candidate.name);
            assert_eq!(*role, Some(if total { Role::GradNorm } else { Role::LayerGradNorm }), "{}", candidate.name);
        }
        series.iter_mut().for_each(|candidate| candidate.fixed = true);
        assert!(resolve(&series).iter().all(|role| *role == Some(Role::GradNorm)), "the user's choice stays");
    }

    #[test]
    fn training_set_evaluations_are_no_training_loss() {
        let series = [
            candidate("loss", 0, 900, 900),
            candidate("train/loss", 0, 900, 10),
            candidate("validation/loss", 0, 900, 10),
            candidate("train/ctc_loss", 0, 900, 10),
            candidate("test/ctc_loss", 0, 900, 10),
            candidate("train/mse_loss", 0, 900, 10),
        ];
        use Role::{EvalLoss, Loss, LossPart};
        assert_eq!(resolve(&series), [Loss, EvalLoss, EvalLoss, EvalLoss, EvalLoss, LossPart].map(Some));
        let other_steps = [candidate("train/loss", 0, 900, 900), candidate("validation/loss", 0, 900, 10)];
        assert_eq!(resolve(&other_steps), [Loss, EvalLoss].map(Some));
        let empty = [candidate("train/loss", 0, 0, 0), candidate("validation/loss", 0, 0, 0)];
        assert_eq!(resolve(&empty), [Loss, EvalLoss].map(Some));
        let keras = [candidate("train_loss", 0, 900, 10), candidate("validation_loss", 0, 900, 10)];
        assert_eq!(resolve(&keras), [Loss, EvalLoss].map(Some), "only a parent train/ is an evaluation");
        let mut fixed = series;
        fixed[1].fixed = true;
        assert_eq!(resolve(&fixed)[1], Some(Loss));
    }

    #[test]
    fn a_raw_twin_makes_the_other_post_clip() {
        let series = [candidate("learning/grad_norm", 0, 9, 10), candidate("learning/raw_grad_norm", 0, 9, 10)];
        assert_eq!(resolve(&series), [Some(Role::GradNormPostClip), Some(Role::GradNorm)]);
        assert_eq!(resolve(&series[..1]), [Some(Role::GradNorm)]);
        let apart = [candidate("actor/grad_norm", 0, 9, 10), candidate("critic/raw_grad_norm", 0, 9, 10)];
        assert_eq!(resolve(&apart), [Some(Role::GradNorm), Some(Role::GradNorm)]);
        assert_eq!(resolve(&[]), []);
    }

    #[test]
    fn ends_of_bins_are_no_series_of_their_own_kind() {
        assert_eq!(bin_maximum("train/loss").as_deref(), Some("train/loss__MAX"));
        assert_eq!(bin_maximum("train/loss__MIN").as_deref(), Some("train/loss__MAX"));
        assert_eq!(bin_maximum("train/loss__MAX"), None);
        // Three metrics with both ends are nine names, and no layers.
        let names: Vec<String> = ["actor", "critic", "policy"]
            .iter()
            .flat_map(|of| ["", "__MIN", "__MAX"].map(|end| format!("{of}/grad_norm{end}")))
            .collect();
        let series: Vec<_> = names.iter().map(|name| candidate(name, 0, 9, 10)).collect();
        assert!(series.len() > MAX_TOTALS);
        assert_eq!(resolve(&series), vec![Some(Role::GradNorm); 9]);
    }

    #[test]
    fn group_relative_training() {
        for name in [
            "frac_reward_zero_std",
            "train/frac_reward_zero_std",
            "rewards/accuracy/mean",
            "train/mean_advantage",
            "critic/advantages/mean",
        ] {
            assert!(is_group_relative(name), "{name}");
        }
        for name in ["reward", "reward_std", "rewards", "loss", "episode_reward_mean"] {
            assert!(!is_group_relative(name), "{name}");
        }
    }

    #[test]
    fn steps_and_times() {
        let order = [
            "step",
            "global_step",
            "train/global_step",
            "trainer/global_step",
            "iteration",
            "iter",
            "current_steps",
            "num_updates",
            "training_iteration",
            "_step",
            "epoch",
        ];
        let ranks: Vec<usize> = order.iter().map(|name| step_rank(name).unwrap_or_else(|| panic!("{name}"))).collect();
        assert!(ranks.is_sorted(), "{ranks:?}");
        assert_eq!(step_rank("Step"), step_rank("step"));
        assert_eq!(step_rank("train.global_step"), step_rank("train/global_step"));
        assert_ne!(step_rank("_step"), step_rank("step"));
        for name in ["steps_per_second", "max_steps", "total_steps", "loss", "step_time", "", "timestamp"] {
            assert_eq!(step_rank(name), None, "{name}");
        }
        for name in STEP_NAMES {
            assert_eq!(STEP_NAMES[step_rank(name).unwrap()], *name, "no two names are one");
        }
        let units = [
            ("step", Unit::Step),
            ("epoch", Unit::Epoch),
            ("consumed_samples", Unit::Samples),
            ("num_tokens", Unit::Tokens),
            ("time/batch", Unit::Batch),
            ("timesteps_total", Unit::EnvSteps),
            ("time/total_timesteps", Unit::EnvSteps),
            ("global_step/max_steps", Unit::Step),
        ];
        for (name, unit) in units {
            assert_eq!(step_unit(name), unit, "{name}");
        }
        assert!(
            is_fraction_step("global_step/max_steps") && is_fraction_step("Iteration") && !is_fraction_step("step")
        );
        assert!(is_time("timestamp") && is_time("_timestamp") && is_time("Wall time") && is_time("wall_time"));
        assert!(!is_time("time") && !is_time("step_time") && !is_time("train/timestamp_delta"));
    }
}
