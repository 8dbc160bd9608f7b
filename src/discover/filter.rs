//! Which files of a walk are looked at.

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};

/// Which files of a walk are looked at.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    include: Option<GlobSet>,
    exclude: Option<GlobSet>,
    /// What is taken depends on the root that paths are relative to.
    is_anchored: bool,
    /// The user says what columns are called: a named file that may be a table is read as one.
    pub names_columns: bool,
}

impl Filter {
    /// Patterns over paths relative to the root; one without `/` matches a name at any depth. An error names the
    /// pattern.
    pub fn new(include: &[String], exclude: &[String]) -> Result<Self, String> {
        let is_anchored = include.iter().any(|pattern| anchor(pattern).contains('/'));
        Ok(Self { include: glob_set(include)?, exclude: glob_set(exclude)?, is_anchored, names_columns: false })
    }

    /// Whether something below a root may be hidden there and yet be seen where it is a root of its own.
    pub(super) fn may_hide(&self, path: &str, is_dir: bool) -> bool {
        let above = path.match_indices('/').any(|(at, _)| self.excludes(&path[..at]));
        above || self.excludes(path) || if is_dir { self.is_anchored } else { !self.includes(path) }
    }

    pub(super) fn excludes(&self, path: &str) -> bool {
        self.exclude.as_ref().is_some_and(|globs| globs.is_match(path))
    }

    pub(super) fn includes(&self, path: &str) -> bool {
        self.include.as_ref().is_none_or(|globs| globs.is_match(path))
    }
}

/// A pattern without what says nothing of where it holds.
fn anchor(pattern: &str) -> &str {
    pattern.trim_start_matches("./").trim_end_matches('/')
}

fn glob_set(patterns: &[String]) -> Result<Option<GlobSet>, String> {
    if patterns.is_empty() {
        return Ok(None);
    }
    let mut set = GlobSetBuilder::new();
    for pattern in patterns {
        // As in .gitignore: a slash at the begin or in the middle anchors the pattern at the root.
        let anchored = anchor(pattern);
        let is_anchored = anchored.contains('/');
        let inner = anchored.trim_start_matches('/');
        if inner.is_empty() || inner.starts_with('!') {
            return Err(format!("glob {pattern:?}: want a pattern of paths to take or leave out"));
        }
        let deep = if is_anchored { inner.to_owned() } else { format!("**/{inner}") };
        for glob in [deep.clone(), format!("{deep}/**")] {
            let glob = GlobBuilder::new(&glob).literal_separator(true).build();
            set.add(glob.map_err(|error| format!("glob {pattern:?}: {}", error.kind()))?);
        }
    }
    set.build().map(Some).map_err(|error| error.to_string())
}
