//! Which instruction set a kernel may use, decided once at run time and carried as a value.
#![allow(unsafe_code)]

/// Proof that this processor can run a kernel compiled for one instruction set.
///
/// The field is private and the constructors detect, so whoever holds a `Level` may use it. Two levels exist: the
/// portable one (the target's baseline: SSE2 on x86-64, NEON on aarch64) and x86-64-v3 (AVX2, FMA, BMI).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level(Kind);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Portable,
    #[cfg(target_arch = "x86_64")]
    V3,
}

impl Level {
    /// The best level of this processor.
    #[must_use]
    pub fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        if has_v3() {
            return Self(Kind::V3);
        }
        Self(Kind::Portable)
    }

    /// The level that every processor has.
    #[must_use]
    pub const fn portable() -> Self {
        Self(Kind::Portable)
    }

    /// Every level that this processor can run, the portable one first.
    #[must_use]
    pub fn all_available() -> Vec<Self> {
        let mut levels = vec![Self::portable()];
        if Self::detect() != Self::portable() {
            levels.push(Self::detect());
        }
        levels
    }

    /// The level's name: `portable` or `x86-64-v3`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self.0 {
            Kind::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Kind::V3 => "x86-64-v3",
        }
    }

    /// Whether functions with `#[target_feature]` of x86-64-v3 may be called.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(super) const fn is_v3(self) -> bool {
        matches!(self.0, Kind::V3)
    }

    /// Runs `body` compiled for this level.
    ///
    /// It only helps code that is inlined into it: mark the closure and what it calls `#[inline(always)]`.
    #[inline(always)]
    pub fn run<R>(self, body: impl FnOnce() -> R) -> R {
        match self.0 {
            Kind::Portable => body(),
            // SAFETY: only `detect` makes a V3, after `has_v3` saw every feature named at `run_v3`.
            #[cfg(target_arch = "x86_64")]
            Kind::V3 => unsafe { run_v3(body) },
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx,avx2,bmi1,bmi2,f16c,fma,lzcnt,movbe,popcnt,sse3,ssse3,sse4.1,sse4.2,xsave,cmpxchg16b")]
fn run_v3<R>(body: impl FnOnce() -> R) -> R {
    body()
}

/// Every feature of x86-64-v3, one by one: the macro does not know the level's name.
#[cfg(target_arch = "x86_64")]
fn has_v3() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("avx")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("f16c")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("lzcnt")
        && is_x86_feature_detected!("movbe")
        && is_x86_feature_detected!("popcnt")
        && is_x86_feature_detected!("sse3")
        && is_x86_feature_detected!("ssse3")
        && is_x86_feature_detected!("sse4.1")
        && is_x86_feature_detected!("sse4.2")
        && is_x86_feature_detected!("xsave")
        && is_x86_feature_detected!("cmpxchg16b")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_level_of_this_processor_is_run() {
        let names: Vec<_> = Level::all_available().iter().map(|l| l.run(|| l.name())).collect();
        println!("levels run: {names:?}");
        assert_eq!(names[0], "portable");
        #[cfg(target_arch = "x86_64")]
        {
            // AVX2 and BMI2 without the rest of v3 has never been sold: seeing them means that v3 must have run.
            let v3 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("bmi2");
            assert_eq!(names.contains(&"x86-64-v3"), v3, "levels run: {names:?}");
        }
        assert!(Level::all_available().contains(&Level::detect()));
    }
}
