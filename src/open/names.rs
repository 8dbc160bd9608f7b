//! Names as reports can carry them.

use std::ffi::OsStr;
use std::path::Path;

/// A path as reports show it, parts joined by `/`.
pub fn shown(path: &Path) -> String {
    path.iter().map(escape).collect::<Vec<_>>().join("/")
}

/// A name that every report can carry. Control characters and bytes that are no UTF-8 become `\\xNN` and a backslash
/// `\\\\`, so that no two names read alike.
pub fn escape(name: &OsStr) -> String {
    escape_bytes(name.as_encoded_bytes())
}

fn escape_bytes(bytes: &[u8]) -> String {
    if let Ok(text) = std::str::from_utf8(bytes)
        && !text.chars().any(|c| c.is_control() || c == '\\')
    {
        return text.to_owned();
    }
    let mut escaped = String::new();
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            match character {
                '\\' => escaped.push_str("\\\\"),
                c if c.is_control() => {
                    let mut utf8 = [0; 4];
                    c.encode_utf8(&mut utf8).bytes().for_each(|byte| escaped += &format!("\\x{byte:02x}"));
                }
                c => escaped.push(c),
            }
        }
        chunk.invalid().iter().for_each(|byte| escaped += &format!("\\x{byte:02x}"));
    }
    escaped
}

/// Where a member of an archive lies below it, whatever its name claims: absolute names begin there, and `..` leads
/// nowhere above. `is_dos`: backslashes separate. Empty where nothing is left of the name.
#[cfg(feature = "archives")]
pub fn inside(name: &[u8], is_dos: bool) -> String {
    let mut parts: Vec<&[u8]> = Vec::new();
    for (at, part) in name.split(|byte| *byte == b'/' || (is_dos && *byte == b'\\')).enumerate() {
        match part {
            b"" | b"." => {}
            b".." => drop(parts.pop()),
            [letter, b':'] if at == 0 && letter.is_ascii_alphabetic() => {}
            part => parts.push(part),
        }
    }
    parts.into_iter().map(escape_bytes).collect::<Vec<_>>().join("/")
}

#[cfg(all(test, feature = "archives"))]
mod tests {
    use super::inside;

    #[test]
    fn no_name_leads_out_of_its_archive() {
        for (name, is_dos, want) in [
            ("a/b.jsonl", false, "a/b.jsonl"),
            ("./a//b/", false, "a/b"),
            ("/etc/passwd", false, "etc/passwd"),
            ("../../etc/passwd", false, "etc/passwd"),
            ("a/../../b", false, "b"),
            ("a\\b", false, "a\\\\b"),
            ("a\\..\\b", true, "b"),
            ("C:\\runs\\a", true, "runs/a"),
            ("./", false, ""),
            ("a\nb\u{85}", false, "a\\x0ab\\xc2\\x85"),
        ] {
            assert_eq!(inside(name.as_bytes(), is_dos), want, "{name:?}");
        }
        assert_eq!(inside(b"a/\xff\xfeb", false), "a/\\xff\\xfeb");
    }
}
