//! SQLite databases of trackers, read without a trace: nothing is written into them or beside them, no lock is taken.
//!
//! SQLite opens files itself, so this is the one place where a reader asks [`Files::local`]. Members of archives and
//! compressed files are read whole, up to [`Limits::whole`](crate::model::Limits), and opened in memory.

use std::borrow::Cow;
use std::io::Read;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rusqlite::config::DbConfig;
use rusqlite::limits::Limit;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, ErrorCode, OpenFlags};

use super::{Files, Rejected, Session, is_git_lfs_pointer};
use crate::model::source::companions;
use crate::model::{Fault, FaultKind, Part, Place, PlaceUnit};

/// What a database begins with.
pub const MAGIC: &[u8; 16] = b"SQLite format 3\0";

/// Bytes of the header of a database.
const HEADER: usize = 100;

/// Instructions of SQLite's machine between two looks at the budget.
const TICK: i32 = 10_000;
/// Instructions allowed whatever the size, and for each byte: a row takes about 15, and at least 10 bytes. Pages that form a
/// circle, or a view that multiplies, end here.
const WORK: u64 = 5_000_000;
const WORK_PER_BYTE: u64 = 8;

/// Something that SQLite could not do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// The fault that it is.
    pub kind: FaultKind,
    /// In SQLite's words.
    pub detail: String,
}

impl From<rusqlite::Error> for Trouble {
    fn from(error: rusqlite::Error) -> Self {
        let (kind, detail) = match error.sqlite_error_code() {
            Some(ErrorCode::OperationInterrupted) => {
                (FaultKind::Limit, "more work than its size explains: given up".to_owned())
            }
            Some(ErrorCode::TooBig) => (FaultKind::Limit, error.to_string()),
            Some(ErrorCode::SystemIoFailure | ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => {
                (FaultKind::Io, error.to_string())
            }
            _ => (FaultKind::Unparsable, error.to_string()),
        };
        Self { kind, detail }
    }
}

impl Trouble {
    /// The error of a source of which nothing can be read for it.
    pub fn rejected(&self) -> Rejected {
        let code = match self.kind {
            FaultKind::Limit => "limit",
            FaultKind::Io => "io-error",
            _ => "corrupt",
        };
        Rejected::unreadable(code, self.detail.clone())
    }

    /// As a fault of a table, after so many of its rows.
    pub fn fault(&self, part: u32, rows: u64) -> Fault {
        Fault::new(self.kind, Place { part, unit: PlaceUnit::Row, at: rows }, self.detail.clone())
    }
}

/// Connections to one database.
#[derive(Debug)]
enum Pool {
    /// A file, to which every worker has a connection of its own.
    Local { uri: String, idle: Mutex<Vec<Connection>> },
    /// Bytes in memory: one connection for all.
    Memory(Mutex<Connection>),
}

/// A database, open for reading.
#[derive(Debug)]
pub struct Database {
    pool: Pool,
    settings: Settings,
    /// What is wrong with it as a whole.
    pub faults: Vec<Fault>,
    /// Bytes, its log included.
    pub size: u64,
}

#[derive(Clone, Copy, Debug)]
struct Settings {
    /// Bytes of one row.
    row: usize,
    /// Instructions that a connection may run.
    work: u64,
    /// Its end is missing.
    is_cut: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Database {
    /// Opens a part, which is part `index` of its source.
    pub fn open(part: &Part, index: u32, session: &Session<'_>) -> Result<Self, Rejected> {
        let files = session.files;
        let mut raw = Vec::new();
        if let Ok(ranges) = files.ranges(part) {
            let head = ranges.read(0..ranges.size().min(HEADER as u64))?;
            raw.extend_from_slice(&head);
            if let Some(path) = files.local(part).filter(|_| head.len() == HEADER && head.starts_with(MAGIC)) {
                return Self::open_local(&path, ranges.size(), &raw, part, index, session);
            }
        }
        Self::open_memory(part, index, session)
    }

    fn open_local(
        path: &Path,
        size: u64,
        head: &[u8],
        part: &Part,
        index: u32,
        session: &Session<'_>,
    ) -> Result<Self, Rejected> {
        let files = session.files;
        let log = beside(files, part, "-wal", LOG).map_or(0, |log| log.len() as u64);
        let has_log = log >= LOG;
        let log_size = if has_log { size_beside(files, part, "-wal") } else { 0 };
        let mut faults = Vec::new();
        let is_cut = note_cut(head, size, index, &mut faults);
        note_journal(files, part, index, &mut faults);
        if has_log && log_size <= session.limits.whole {
            let whole = beside(files, part, "-wal", log_size).unwrap_or_default();
            note_log(apply_log(&mut Vec::new(), &whole), index, &mut faults);
        }
        let all = size.saturating_add(log_size);
        let settings = Settings { row: session.limits.record, work: work(all), is_cut };
        // What is immutable is read without a look at logs and locks. With a log it is no option: rows sit in it.
        let how = if has_log { "mode=ro" } else { "mode=ro&immutable=1" };
        let uri = uri(path, how);
        let first = connect(&uri, settings);
        let (uri, first) = match first {
            Err(trouble) if has_log => {
                let detail = format!("the log beside it (-wal) could not be applied: {}", trouble.detail);
                faults.push(Fault::new(FaultKind::Conflict, begin(index), detail));
                let uri = self::uri(path, "mode=ro&immutable=1");
                let first = connect(&uri, settings);
                (uri, first)
            }
            first => (uri, first),
        };
        let first = first.map_err(|trouble| trouble.rejected())?;
        Ok(Self { pool: Pool::Local { uri, idle: Mutex::new(vec![first]) }, settings, faults, size: all })
    }

    fn open_memory(part: &Part, index: u32, session: &Session<'_>) -> Result<Self, Rejected> {
        let (files, limit) = (session.files, session.limits.whole);
        let mut bytes = Vec::new();
        files.open(part)?.take(limit.saturating_add(1)).read_to_end(&mut bytes).or_else(|error| {
            // What was unpacked before the damage is a database whose end is missing.
            if bytes.len() < HEADER { Err(error) } else { Ok(bytes.len()) }
        })?;
        if bytes.len() as u64 > limit {
            let detail = format!("a packed database of more than {limit} bytes: unpack it first");
            return Err(Rejected::unreadable("limit", detail));
        }
        if is_git_lfs_pointer(&bytes) {
            return Err(Rejected::unreadable("git-lfs-pointer", "a Git LFS pointer in place of the file"));
        }
        if bytes.len() < HEADER {
            let detail = format!("it ends inside its header, after {} bytes", bytes.len());
            return Err(Rejected::unreadable("cut-header", detail));
        }
        if !bytes.starts_with(MAGIC) {
            return Err(Rejected::unreadable("not-a-recording", "no SQLite database"));
        }
        let mut faults = Vec::new();
        if let Some(log) = beside(files, part, "-wal", limit.saturating_add(1)) {
            if log.len() as u64 > limit {
                let detail = format!("its log (-wal) is longer than {limit} bytes and not applied: unpack both");
                faults.push(Fault::new(FaultKind::Limit, begin(index), detail));
            } else {
                note_log(apply_log(&mut bytes, &log), index, &mut faults);
            }
        }
        let size = bytes.len() as u64;
        let is_cut = note_cut(&bytes[..HEADER], size, index, &mut faults);
        note_journal(files, part, index, &mut faults);
        // A database in memory has no log: it is opened as one that never had.
        bytes[18..20].fill(1);
        let settings = Settings { row: session.limits.record, work: work(size), is_cut };
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let open = || -> Result<Connection, Trouble> {
            let mut connection = Connection::open_in_memory_with_flags(flags)?;
            connection.deserialize_read_exact(c"main", bytes.as_slice(), bytes.len(), true)?;
            prepare(&connection, settings)?;
            Ok(connection)
        };
        let connection = open().map_err(|trouble| trouble.rejected())?;
        Ok(Self { pool: Pool::Memory(Mutex::new(connection)), settings, faults, size })
    }

    /// Does something with a connection that no other worker uses meanwhile.
    pub fn with<T>(&self, work: impl FnOnce(&Connection) -> T) -> Result<T, Trouble> {
        match &self.pool {
            Pool::Memory(connection) => Ok(work(&lock(connection))),
            Pool::Local { uri, idle } => {
                let known = lock(idle).pop();
                let connection = match known {
                    Some(connection) => connection,
                    None => connect(uri, self.settings)?,
                };
                let done = work(&connection);
                lock(idle).push(connection);
                Ok(done)
            }
        }
    }
}

fn begin(part: u32) -> Place {
    Place { part, unit: PlaceUnit::Byte, at: 0 }
}

fn work(bytes: u64) -> u64 {
    WORK.saturating_add(bytes.saturating_mul(WORK_PER_BYTE))
}

/// Bytes of the header of a log.
const LOG: u64 = 32;

/// The first bytes of a companion of a part, at most `count`; `None` where there is none.
fn beside(files: &dyn Files, part: &Part, suffix: &str, count: u64) -> Option<Vec<u8>> {
    companions(&part.path, suffix).into_iter().find_map(|path| {
        let name = path.rsplit('/').next().unwrap_or(&path).to_owned();
        let mut head = Vec::new();
        files.open(&Part { path, name, size: 0 }).ok()?.take(count).read_to_end(&mut head).ok()?;
        Some(head)
    })
}

fn size_beside(files: &dyn Files, part: &Part, suffix: &str) -> u64 {
    let sizes = companions(&part.path, suffix).into_iter().filter_map(|path| {
        let name = path.rsplit('/').next().unwrap_or(&path).to_owned();
        files.ranges(&Part { path, name, size: 0 }).ok().map(|ranges| ranges.size())
    });
    sizes.into_iter().next().unwrap_or(0)
}

/// Puts the pages of a write-ahead log into the database, up to the last transaction that was committed, and says where it is
/// damaged: a frame of this log (the salts say so) whose checksum does not match. SQLite passes such a frame over without a
/// word, and all behind it. Frames with other salts are of an older log.
fn apply_log(database: &mut Vec<u8>, log: &[u8]) -> Option<(FaultKind, u64)> {
    const FRAME: usize = 24;
    const MAGIC: u32 = 0x377f_0682;
    let four = |bytes: &[u8], at: usize| {
        bytes.get(at..at + 4).and_then(|four| four.first_chunk()).map_or(0, |four| u32::from_be_bytes(*four))
    };
    let (header, mut rest) = log.split_at_checked(LOG as usize)?;
    // The last bit says in which order of bytes the sums are taken.
    let is_big = four(header, 0) == MAGIC | 1;
    let page = four(header, 8) as usize;
    let sum = |mut sums: (u32, u32), bytes: &[u8]| {
        for pair in bytes.as_chunks::<8>().0 {
            let [a, b, c, d, e, f, g, h] = *pair;
            let (first, second) = match is_big {
                true => (u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h])),
                false => (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h])),
            };
            sums.0 = sums.0.wrapping_add(first).wrapping_add(sums.1);
            sums.1 = sums.1.wrapping_add(second).wrapping_add(sums.0);
        }
        sums
    };
    let mut sums = sum((0, 0), &header[..24]);
    let is_log = four(header, 0) & !1 == MAGIC && page.is_power_of_two() && (512..=65_536).contains(&page);
    if !is_log || sums != (four(header, 24), four(header, 28)) {
        // A log that was emptied begins with zeros.
        return header.iter().any(|byte| *byte != 0).then_some((FaultKind::BadChecksum, 0));
    }
    // Every page that a transaction adds is in the log.
    let longest = database.len().saturating_add(log.len());
    let mut pending: Vec<(usize, &[u8])> = Vec::new();
    while let Some((frame, behind)) = rest.split_at_checked(FRAME + page) {
        let (head, body) = frame.split_at(FRAME);
        sums = sum(sum(sums, &head[..8]), body);
        if head[8..16] != header[16..24] {
            return None;
        }
        if sums != (four(head, 16), four(head, 20)) {
            return Some((FaultKind::BadChecksum, (log.len() - rest.len()) as u64));
        }
        let begin = (four(head, 0) as usize).saturating_sub(1).saturating_mul(page);
        if begin.saturating_add(page) <= longest {
            pending.push((begin, body));
        }
        if four(head, 4) > 0 {
            for (begin, body) in pending.drain(..) {
                if database.len() < begin + page {
                    database.resize(begin + page, 0);
                }
                database[begin..begin + page].copy_from_slice(body);
            }
        }
        rest = behind;
    }
    let is_cut = rest.get(8..16).is_some_and(|salts| *salts == header[16..24]);
    is_cut.then_some((FaultKind::Truncated, (log.len() - rest.len()) as u64))
}

/// The fault that damage of a log is.
fn note_log(damage: Option<(FaultKind, u64)>, part: u32, faults: &mut Vec<Fault>) {
    let Some((kind, at)) = damage else { return };
    let detail = match kind {
        FaultKind::Truncated => format!("its log (-wal) ends inside a page, at byte {at}: rows behind it are lost"),
        _ => format!("its log (-wal) is damaged at byte {at}: rows behind it are not read"),
    };
    faults.push(Fault::new(kind, begin(part), detail));
}

/// Compares the size with what the header says; a file that is shorter is cut.
fn note_cut(head: &[u8], size: u64, part: u32, faults: &mut Vec<Fault>) -> bool {
    let four = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let page = match u16::from_be_bytes([head[16], head[17]]) {
        1 => 65_536,
        size => u64::from(size),
    };
    // Writers of old wrote no count; it counts where the counters of changes agree.
    let claimed = if four(24) == four(92) { u64::from(four(28)) * page } else { 0 };
    if claimed <= size {
        return false;
    }
    let place = Place { part, unit: PlaceUnit::Byte, at: size };
    let detail = format!("the file ends after {size} of {claimed} bytes");
    faults.push(Fault::new(FaultKind::Truncated, place, detail));
    true
}

/// A journal that is not empty holds what stood in the database before a transaction that did not end.
fn note_journal(files: &dyn Files, part: &Part, index: u32, faults: &mut Vec<Fault>) {
    const JOURNAL: &[u8] = &[0xd9, 0xd5, 0x05, 0xf9, 0x20, 0xa1, 0x63, 0xd7];
    if beside(files, part, "-journal", 8).is_some_and(|head| head == JOURNAL) {
        let detail = "its last transaction did not end: the journal beside it (-journal) was not rolled back, and rows may be \
                      missing or half written";
        faults.push(Fault::new(FaultKind::Conflict, begin(index), detail));
    }
}

/// A path as SQLite's URI, which takes every byte of a name.
fn uri(path: &Path, how: &str) -> String {
    #[cfg(unix)]
    let bytes: Cow<'_, [u8]> = std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str()).into();
    #[cfg(not(unix))]
    let bytes: Cow<'_, [u8]> = {
        let text = path.to_string_lossy().replace('\\', "/");
        let is_drive = text.as_bytes().get(1) == Some(&b':');
        if is_drive { format!("/{text}").into_bytes().into() } else { text.into_bytes().into() }
    };
    let mut uri = String::from(if bytes.starts_with(b"/") { "file://" } else { "file:" });
    for byte in bytes.iter().copied() {
        if byte.is_ascii_alphanumeric() || b"/-_.:".contains(&byte) {
            uri.push(char::from(byte));
        } else {
            uri.push_str(&format!("%{byte:02x}"));
        }
    }
    // Without locks: a lock beside a file on a shared disk is a trace, and may wait for ever.
    let vfs = if cfg!(windows) { "win32-none" } else { "unix-none" };
    format!("{uri}?{how}&vfs={vfs}")
}

fn connect(uri: &str, settings: Settings) -> Result<Connection, Trouble> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(uri, flags)?;
    prepare(&connection, settings)?;
    Ok(connection)
}

/// Makes a connection one that only reads, trusts nothing in the file, and ends.
fn prepare(connection: &Connection, settings: Settings) -> Result<(), Trouble> {
    // The log must neither be written back nor removed when the connection is closed.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_VIEW, false)?;
    // A cut file is only opened with a schema that may be written; nothing else of it is allowed.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, !settings.is_cut)?;
    connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, i32::try_from(settings.row).unwrap_or(i32::MAX))?;
    connection.set_limit(Limit::SQLITE_LIMIT_SQL_LENGTH, 1 << 20)?;
    connection.set_limit(Limit::SQLITE_LIMIT_ATTACHED, 0)?;
    connection.set_limit(Limit::SQLITE_LIMIT_EXPR_DEPTH, 100)?;
    connection.set_limit(Limit::SQLITE_LIMIT_WORKER_THREADS, 0)?;
    let mut left = settings.work / TICK as u64;
    let spend = move || {
        left = left.saturating_sub(1);
        left == 0
    };
    connection.progress_handler(TICK, Some(spend))?;
    if settings.is_cut {
        connection.execute_batch("PRAGMA writable_schema=ON")?;
    }
    // Exclusive before the first read: the index of a log then lives in memory, not in a file beside it.
    connection.execute_batch(
        "PRAGMA locking_mode=EXCLUSIVE; PRAGMA query_only=ON; PRAGMA cell_size_check=ON; PRAGMA mmap_size=0; \
         PRAGMA temp_store=MEMORY; PRAGMA cache_size=-4096",
    )?;
    connection.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()))?;
    Ok(())
}

/// One column of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableColumn {
    /// Its name.
    pub name: String,
    /// It never holds NULL.
    pub not_null: bool,
}

/// The columns of a plain table, in order; `None` where there is none of that name, or it is a view, a virtual table, or
/// computes columns: what those run is nobody's data.
pub fn table(connection: &Connection, name: &str) -> Result<Option<Vec<TableColumn>>, Trouble> {
    let mut query = connection.prepare("SELECT sql FROM sqlite_schema WHERE type = 'table' AND name = ?1")?;
    let mut rows = query.query([name])?;
    let Some(row) = rows.next()? else { return Ok(None) };
    let is_plain = text(row.get_ref(0)?).is_some_and(|sql| {
        let mut words = sql.split_ascii_whitespace();
        words.next().is_some_and(|word| word.eq_ignore_ascii_case("create"))
            && words.next().is_some_and(|word| word.eq_ignore_ascii_case("table"))
    });
    if !is_plain {
        return Ok(None);
    }
    let mut query = connection.prepare("SELECT name, \"notnull\", hidden FROM pragma_table_xinfo(?1)")?;
    let mut rows = query.query([name])?;
    let mut columns = Vec::new();
    while let Some(row) = rows.next()? {
        if integer(row.get_ref(2)?) != Some(0) {
            return Ok(None);
        }
        let name = text(row.get_ref(0)?).map(Cow::into_owned).unwrap_or_default();
        columns.push(TableColumn { name, not_null: integer(row.get_ref(1)?) == Some(1) });
    }
    Ok(Some(columns).filter(|columns| !columns.is_empty()))
}

/// Whether an index of a table begins with these columns.
pub fn has_index(connection: &Connection, table: &str, columns: &[&str]) -> Result<bool, Trouble> {
    let mut query = connection.prepare(
        "SELECT l.name, i.seqno, i.name FROM pragma_index_list(?1) AS l, pragma_index_info(l.name) AS i \
         WHERE l.partial = 0 ORDER BY l.seq, i.seqno",
    )?;
    let mut rows = query.query([table])?;
    let mut matched = 0;
    while let Some(row) = rows.next()? {
        let at = integer(row.get_ref(1)?).and_then(|at| usize::try_from(at).ok());
        if at == Some(0) {
            matched = 0;
        }
        let column = text(row.get_ref(2)?);
        if at == Some(matched) && columns.get(matched).is_some_and(|want| column.as_deref() == Some(want)) {
            matched += 1;
            if matched == columns.len() {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// A text, whatever its bytes.
pub fn text(value: ValueRef<'_>) -> Option<Cow<'_, str>> {
    bytes(value).map(String::from_utf8_lossy)
}

/// The bytes of a text or blob.
pub fn bytes(value: ValueRef<'_>) -> Option<&[u8]> {
    match value {
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => Some(bytes),
        _ => None,
    }
}

/// A whole number; a fraction is rounded down.
pub fn integer(value: ValueRef<'_>) -> Option<i64> {
    match value {
        ValueRef::Integer(value) => Some(value),
        ValueRef::Real(value) if value.is_finite() => Some(value.floor() as i64),
        _ => None,
    }
}

/// Whether a file's first bytes are a database whose schema, as far as it stands there, says all of this.
pub fn head_says(head: &[u8], all: &[&str]) -> bool {
    head.starts_with(MAGIC) && all.iter().all(|word| memchr::memmem::find(head, word.as_bytes()).is_some())
}

/// Whether a name is that of a database.
pub fn is_database_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    [".db", ".sqlite", ".sqlite3", ".db3"].iter().any(|suffix| name.ends_with(suffix))
}
