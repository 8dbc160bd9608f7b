use super::super::numbers::{Cell, parse_f64, parse_text_value, parse_word};
use super::*;
use proptest::prelude::*;

/// A JSON document.
#[derive(Clone, Debug, PartialEq)]
enum Json {
    Bare(&'static str),
    Number(String),
    String(String),
    Array(Vec<Json>),
    Object(Vec<(String, Json)>),
}

impl Json {
    /// Writes the document, with `blank` between all tokens.
    fn write(&self, blank: &str, out: &mut String) {
        let list =
            |out: &mut String, open: char, close: char, items: usize, item: &mut dyn FnMut(usize, &mut String)| {
                out.push(open);
                for i in 0..items {
                    if i > 0 {
                        out.push(',');
                    }
                    out.push_str(blank);
                    item(i, out);
                }
                out.push_str(blank);
                out.push(close);
            };
        match self {
            Json::Bare(word) => out.push_str(word),
            Json::Number(digits) => out.push_str(digits),
            Json::String(text) => out.push_str(&serde_json::to_string(text).unwrap()),
            Json::Array(items) => {
                list(out, '[', ']', items.len(), &mut |i, out| items[i].write(blank, out));
            }
            Json::Object(fields) => list(out, '{', '}', fields.len(), &mut |i, out| {
                out.push_str(&serde_json::to_string(&fields[i].0).unwrap());
                out.push(':');
                out.push_str(blank);
                fields[i].1.write(blank, out);
            }),
        }
    }

    fn text(&self, blank: &str) -> String {
        let mut out = String::new();
        self.write(blank, &mut out);
        out
    }
}

/// Reads a document with the cursor. The test recurses, the cursor does not.
fn read(cursor: &mut Cursor<'_>) -> Result<Json, Stop> {
    Ok(match cursor.kind()? {
        Kind::Object => {
            let mut fields = Vec::new();
            cursor.enter_object()?;
            while let Some(key) = cursor.next_key()? {
                fields.push((decoded(&key), read(cursor)?));
            }
            Json::Object(fields)
        }
        Kind::Array => {
            let mut items = Vec::new();
            cursor.enter_array()?;
            while cursor.next_item()? {
                items.push(read(cursor)?);
            }
            Json::Array(items)
        }
        Kind::String => Json::String(decoded(&cursor.string()?)),
        Kind::Number => Json::Number(String::from_utf8(cursor.number()?.to_vec()).unwrap()),
        _ => Json::Bare(match cursor.bare()? {
            Kind::True => "true",
            Kind::False => "false",
            Kind::Null => "null",
            Kind::NaN => "NaN",
            Kind::Infinity => "Infinity",
            Kind::NegInfinity => "-Infinity",
            other => panic!("{other:?} is no bare word"),
        }),
    })
}

fn decoded(text: &Text<'_>) -> String {
    let mut out = String::new();
    text.decode(&mut out);
    out
}

fn number() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<f64>().prop_filter("finite", |value| value.is_finite()).prop_map(|value| format!("{value:?}")),
        any::<i32>().prop_map(|value| value.to_string()),
        (-10.0..10.0f64).prop_map(|value| value.to_string()),
    ]
}

fn key() -> impl Strategy<Value = String> {
    prop_oneof![4 => "[a-d]", 1 => "[a-c/ \"\\\\\u{e9}\n]{0,3}"]
}

fn json(words: Vec<&'static str>, key: BoxedStrategy<String>) -> impl Strategy<Value = Json> {
    let leaf = prop_oneof![
        2 => proptest::sample::select(words).prop_map(Json::Bare),
        4 => number().prop_map(Json::Number),
        2 => any::<String>().prop_map(Json::String),
        1 => proptest::sample::select(vec!["NaN", "nan", "-inf", "1.5", "", "{", "]", "\\", "\"", "None"]).prop_map(|text| Json::String(text.into())),
    ];
    leaf.prop_recursive(4, 24, 5, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..5).prop_map(Json::Array),
            proptest::collection::vec((key.clone(), inner), 0..5).prop_map(Json::Object),
        ]
    })
}

fn any_json() -> impl Strategy<Value = Json> {
    json(vec!["true", "false", "null", "NaN", "Infinity", "-Infinity"], key().boxed())
}

fn blank() -> impl Strategy<Value = &'static str> {
    proptest::sample::select(vec!["", " ", "\n  ", "\r\n\t"])
}

/// What the cursor makes of a slice: the document or why not, and how far it came.
fn outcome(bytes: &[u8], at_end: bool) -> (Result<Json, Stop>, usize) {
    let mut cursor = Cursor::with_end(bytes, at_end);
    let result = read(&mut cursor);
    (result, cursor.position())
}

proptest! {
    #[test]
    fn documents_come_back(document in any_json(), blank in blank()) {
        let text = document.text(blank);
        prop_assert_eq!(outcome(text.as_bytes(), true), (Ok(document), text.len()));
    }

    #[test]
    fn agrees_with_serde_json_and_jiter(document in json(vec!["true", "false", "null"], key().boxed()), blank in blank()) {
        let text = document.text(blank);
        let theirs: serde_json::Value = serde_json::from_str(&text).unwrap();
        let ours = read(&mut Cursor::with_end(text.as_bytes(), true)).unwrap();
        prop_assert_eq!(&value(&ours), &theirs);
        prop_assert!(jiter::JsonValue::parse(text.as_bytes(), false).is_ok());
    }

    #[test]
    fn bare_words_as_jiter_reads_them(document in any_json()) {
        let text = document.text(" ");
        prop_assert!(jiter::JsonValue::parse(text.as_bytes(), true).is_ok());
        prop_assert!(outcome(text.as_bytes(), true).0.is_ok());
    }

    #[test]
    fn a_cut_is_incomplete(document in any_json(), blank in blank()) {
        let text = document.text(blank);
        let closed = matches!(document, Json::Array(_) | Json::Object(_) | Json::String(_));
        for cut in 0..=text.len() {
            let (result, _) = outcome(&text.as_bytes()[..cut], false);
            let mut skipped = Cursor::new(&text.as_bytes()[..cut]);
            if cut == text.len() && closed {
                prop_assert_eq!(&result, &Ok(document.clone()));
                prop_assert_eq!(skipped.skip_value(), Ok(()));
            } else {
                prop_assert_eq!(&result, &Err(Stop::Incomplete), "{} of {:?}", cut, text);
                prop_assert_eq!(skipped.skip_value(), Err(Stop::Incomplete));
            }
        }
    }

    #[test]
    fn skipping_ends_where_reading_ends(document in any_json(), blank in blank(), cuts in proptest::collection::vec(1usize..40, 0..20)) {
        let text = format!("{blank}{} ,", document.text(blank));
        let mut cursor = Cursor::new(text.as_bytes());
        read(&mut cursor).unwrap();
        let end = cursor.position();
        let mut skipping = Cursor::new(text.as_bytes());
        prop_assert_eq!(skipping.skip_value(), Ok(()));
        prop_assert_eq!(skipping.position(), end);
        // The skipper, through windows of odd lengths.
        let mut skipper = Skipper::new();
        let mut at = 0;
        let mut lengths = cuts.into_iter().chain(std::iter::repeat(7));
        loop {
            let to = (at + lengths.next().unwrap()).min(text.len());
            match skipper.feed(&text.as_bytes()[at..to], to == text.len()).unwrap() {
                Skip::Done(used) => {
                    prop_assert_eq!(at + used, end);
                    break;
                }
                Skip::More => at = to,
            }
        }
    }

    #[test]
    fn nothing_panics(mut bytes in any_json().prop_map(|document| document.text(" ").into_bytes()), flips in proptest::collection::vec((any::<usize>(), any::<u8>()), 1..4)) {
        for (at, byte) in flips {
            let length = bytes.len();
            bytes[at % length] = byte;
        }
        for at_end in [false, true] {
            let (_, position) = outcome(&bytes, at_end);
            prop_assert!(position <= bytes.len());
            let _ = Cursor::with_end(&bytes, at_end).skip_value();
            let _ = Skipper::new().feed(&bytes, at_end);
            let _ = RowScanner::new(Rows::Free).object(&bytes, at_end, &mut Cells::default());
        }
    }

    #[test]
    fn noise_does_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
        let (_, position) = outcome(&bytes, true);
        prop_assert!(position <= bytes.len());
        let mut text = String::new();
        Text { raw: &bytes, escaped: true }.decode(&mut text);
    }
}

/// Our document as serde_json's, numbers through Rust's parser, the last of duplicate keys.
fn value(json: &Json) -> serde_json::Value {
    match json {
        Json::Bare("true") => true.into(),
        Json::Bare("false") => false.into(),
        Json::Bare(_) => serde_json::Value::Null,
        Json::Number(digits) => serde_json::from_str(digits).unwrap(),
        Json::String(text) => text.as_str().into(),
        Json::Array(items) => items.iter().map(value).collect::<Vec<_>>().into(),
        Json::Object(fields) => {
            let mut map = serde_json::Map::new();
            for (key, field) in fields {
                map.insert(key.clone(), value(field));
            }
            map.into()
        }
    }
}

#[test]
fn a_million_brackets() {
    for open in ["[", "{\"a\":["] {
        let depth = 1_000_000 / open.len();
        let mut text = open.repeat(depth);
        let mut cursor = Cursor::new(text.as_bytes());
        assert_eq!(cursor.skip_value(), Err(Stop::Incomplete));
        for _ in 0..depth {
            text.push_str(if open.len() == 1 { "]" } else { "]}" });
        }
        let mut cursor = Cursor::new(text.as_bytes());
        assert_eq!(cursor.skip_value(), Ok(()));
        assert_eq!(cursor.position(), text.len());
        let row = format!("{{\"deep\": {text}, \"f\": 1}}");
        let mut cells = Cells::default();
        assert_eq!(RowScanner::new(Rows::Lines).object(row.as_bytes(), true, &mut cells), Ok(row.len()));
        assert_eq!(cells.taken.last(), Some(&("f".to_string(), "number 1.0".to_string())));
    }
}

#[test]
fn oddities() {
    let read_all = |text: &str| outcome(text.as_bytes(), true).0;
    assert_eq!(read_all("\u{feff}{\"a\": nan}"), Ok(Json::Object(vec![("a".into(), Json::Bare("NaN"))])));
    for (text, word) in [
        ("nan", "NaN"),
        ("-NaN", "NaN"),
        ("+Infinity", "Infinity"),
        ("inf", "Infinity"),
        ("-inf", "-Infinity"),
        ("INF", "Infinity"),
        ("-Infinity", "-Infinity"),
    ] {
        assert_eq!(read_all(text), Ok(Json::Bare(word)), "{text}");
    }
    for number in ["+1.5", "007", ".5", "5.", "-0", "1e+10"] {
        assert_eq!(read_all(number), Ok(Json::Number(number.into())));
    }
    assert_eq!(read_all("[1, 2, ]"), read_all("[1,2]"));
    assert_eq!(read_all("{\"a\": 1,}"), read_all("{\"a\":1}"));
    let mut cursor = Cursor::new(b"[1,\0\0\0 2\x80]");
    assert!(read(&mut cursor).is_ok());
    assert_eq!(cursor.stray(), 4);
    let invalid = |text: &str, at: usize| match read_all(text) {
        Err(Stop::Invalid { at: found, .. }) => assert_eq!(found, at, "{text}"),
        other => panic!("{text}: {other:?}"),
    };
    invalid("[1 2]", 3);
    invalid("[,1]", 1);
    invalid("[1,,2]", 3);
    invalid("{1: 2}", 1);
    invalid("{\"a\" 2}", 5);
    invalid("{\"a\": 2 \"b\": 3}", 8);
    invalid("nul", 0);
    invalid("tensor(1)", 0);
    invalid("-", 0);
    invalid("1e", 2);
    invalid("[1}", 2);
    invalid("}", 0);
    for (cut, at_end) in
        [("12", false), ("-", false), ("nul", false), ("1e", false), ("\"a", true), ("{\"a\":", true), ("", true)]
    {
        assert_eq!(outcome(cut.as_bytes(), at_end).0, Err(Stop::Incomplete), "{cut}");
    }
    for (raw, text) in [
        ("\\u0041\\n\\/", "A\n/"),
        ("\\ud83d\\ude00", "\u{1f600}"),
        ("\\ud83d!", "\u{fffd}!"),
        ("\\ude00\\ud83d\\u0041", "\u{fffd}\u{fffd}A"),
        ("\\u12", "\u{fffd}12"),
        ("\\x\\", "\u{fffd}x\u{fffd}"),
    ] {
        assert_eq!(decoded(&Text { raw: raw.as_bytes(), escaped: true }), text);
    }
    assert_eq!(decoded(&Text { raw: b"a\xFFb\xC3\xA9", escaped: false }), "a\u{fffd}b\u{e9}");
    assert!(Text { raw: b"\\u0061", escaped: true }.is("a"));
}

/// A sink that writes down what it is given. What it wants of a column hangs on the name.
#[derive(Default)]
struct Cells {
    names: Vec<String>,
    taken: Vec<(String, String)>,
}

fn want(name: &str, column: u32) -> Want {
    match name.bytes().map(u32::from).sum::<u32>() % 7 {
        0 => Want::Skip,
        1 | 2 => Want::Note(column),
        3 => Want::Text(column),
        _ => Want::Number(column),
    }
}

impl Cells {
    fn take(&mut self, column: u32, cell: String) {
        self.taken.push((self.names[column as usize].clone(), cell));
    }
}

impl Sink for Cells {
    fn column(&mut self, path: &Path<'_>) -> Want {
        assert_eq!(path.parts.join("/"), path.joined);
        self.names.push(path.joined.into());
        want(path.joined, self.names.len() as u32 - 1)
    }
    fn number(&mut self, column: u32, value: f64) {
        self.take(column, format!("number {value:?}"));
    }
    fn text(&mut self, column: u32, text: Text<'_>) {
        self.take(column, format!("text {:?}", decoded(&text)));
    }
    fn null(&mut self, column: u32) {
        self.take(column, "null".into());
    }
    fn filled(&mut self, column: u32, _: bool) {
        self.take(column, "filled".into());
    }
}

/// The definition of the row scanner: the cells of one object by the cursor alone.
fn cells(cursor: &mut Cursor<'_>, prefix: &str, depth: usize, out: &mut Vec<(String, String)>) -> Result<(), Stop> {
    cursor.kind()?;
    cursor.enter_object()?;
    while let Some(key) = cursor.next_key()? {
        let name = if depth == 0 { decoded(&key) } else { format!("{prefix}/{}", decoded(&key)) };
        let kind = cursor.kind()?;
        if kind == Kind::Object && depth + 1 < MAX_DEPTH {
            let mut inside = cursor.clone();
            inside.enter_object()?;
            if inside.peek()? != b'}' {
                cells(cursor, &name, depth + 1, out)?;
                continue;
            }
        }
        let wanted = want(&name, 0);
        let number = |value: f64| format!("number {value:?}");
        let cell = match kind {
            Kind::Object | Kind::Array => {
                cursor.skip_value()?;
                "filled".into()
            }
            Kind::String => {
                let text = cursor.string()?;
                match (wanted, parse_text_value(text.raw)) {
                    (Want::Number(_), Cell::Value(value)) => number(value),
                    _ => format!("text {:?}", decoded(&text)),
                }
            }
            Kind::Number => {
                let token = cursor.number()?;
                number(parse_f64(token).or_else(|| parse_word(token)).unwrap())
            }
            _ => match cursor.bare()? {
                Kind::Null => "null".into(),
                Kind::True => number(1.0),
                Kind::False => number(0.0),
                Kind::NaN => number(f64::NAN),
                Kind::Infinity => number(f64::INFINITY),
                _ => number(f64::NEG_INFINITY),
            },
        };
        match wanted {
            Want::Skip => {}
            Want::Note(_) if cell != "null" => out.push((name, "filled".into())),
            _ => out.push((name, cell)),
        }
    }
    Ok(())
}

/// Both ways over rows that follow each other, by one scanner. Returns how many rows were whole.
fn compare(rows: &[Vec<u8>], at_end: bool) -> usize {
    let mut whole = 0;
    let mut scanner = RowScanner::new(Rows::Free);
    let mut sink = Cells::default();
    for row in rows {
        sink.taken.clear();
        let result = scanner.object(row, at_end, &mut sink);
        let mut cursor = Cursor::with_end(row, at_end);
        let mut expected = Vec::new();
        let definition = cells(&mut cursor, "", 0, &mut expected).map(|()| cursor.position());
        let text = String::from_utf8_lossy(row);
        match (result, definition) {
            (Ok(used), definition) => {
                assert_eq!(definition, Ok(used), "{text}");
                assert_eq!(sink.taken, expected, "{text}");
                whole += 1;
            }
            (Err(Stop::Incomplete), definition) => assert_eq!(definition, Err(Stop::Incomplete), "{text}"),
            (Err(Stop::Invalid { at, .. }), Err(Stop::Invalid { at: by_definition, .. })) => {
                assert_eq!(at, by_definition, "{text}")
            }
            (result, definition) => panic!("{text}: {result:?} {definition:?}"),
        }
    }
    whole
}

fn object() -> impl Strategy<Value = Json> {
    let words = vec!["true", "false", "null", "NaN", "Infinity", "-Infinity"];
    proptest::collection::vec((key(), json(words, key().boxed())), 0..6).prop_map(Json::Object)
}

/// Rows of a few shapes: templates whose values change, some with a key more or less, some with odd blanks.
fn rows() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let shapes = proptest::collection::vec((object(), blank()), 1..4);
    let steps = proptest::collection::vec((any::<usize>(), 0u8..10, any::<usize>(), number()), 1..24);
    (shapes, steps).prop_map(|(shapes, steps)| {
        let row = |(shape, change, at, digits): (usize, u8, usize, String)| {
            let (object, blank) = &shapes[shape % shapes.len()];
            let Json::Object(mut fields) = object.clone() else { unreachable!("shapes are objects") };
            let at = if fields.is_empty() { 0 } else { at % fields.len() };
            if let Some(field) = fields.get_mut(at) {
                match change {
                    0 => drop(fields.remove(at)),
                    1 => field.1 = Json::Bare("null"),
                    2 => field.1 = Json::Object(vec![("a".into(), Json::Number(digits))]),
                    3 => field.1 = Json::String(digits),
                    _ => field.1 = Json::Number(digits),
                }
            }
            let blank = if change == 4 { "  " } else { blank };
            Json::Object(fields).text(blank).into_bytes()
        };
        steps.into_iter().map(row).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn row_scanner_equals_cursor(rows in rows(), padding in 0usize..80) {
        let padded: Vec<Vec<u8>> = rows.iter().map(|row| [&row[..], &vec![b' '; padding]].concat()).collect();
        prop_assert_eq!(compare(&padded, false), rows.len());
    }

    #[test]
    fn row_scanner_equals_cursor_on_broken_rows(
        mut rows in rows(),
        damage in proptest::collection::vec((any::<usize>(), any::<usize>(), prop_oneof![any::<u8>(), proptest::sample::select(b"\",:{}[]\\0 \n".to_vec())]), 1..8),
        cut in any::<bool>(),
        at_end in any::<bool>(),
    ) {
        for (row, at, byte) in damage {
            let count = rows.len();
            let row = &mut rows[row % count];
            let length = row.len();
            if cut { row.truncate(at % length.max(1)) } else if length > 0 { row[at % length] = byte }
        }
        let rows: Vec<Vec<u8>> = rows.iter().map(|row| [&row[..], &[b' '; 70]].concat()).collect();
        compare(&rows, at_end);
    }
}

#[test]
fn lines_do_not_swallow_each_other() {
    let text = "{\"a\": 1, \"b\": \"x\"}\n{\"a\": 2, \"b\": \"y\n{\"a\": 3, \"b\": \"z\"}\n\n  {\"a\": 4, \"b\": [1,\n{\"a\": 5}\n{\"a\": 6";
    let mut scanner = RowScanner::new(Rows::Lines);
    let mut sink = Cells::default();
    let mut at = 0;
    let mut seen = Vec::new();
    loop {
        sink.taken.clear();
        match scanner.object(&text.as_bytes()[at..], false, &mut sink) {
            Ok(used) => {
                seen.push(sink.taken[0].1.clone());
                at += used;
            }
            Err(Stop::Invalid { at: bad, .. }) => {
                assert_eq!(text.as_bytes()[at + bad], b'\n');
                seen.push("invalid".into());
                at += bad;
            }
            Err(Stop::Incomplete) => break,
        }
    }
    // "a" is 97, a number column.
    assert_eq!(seen, ["number 1.0", "invalid", "number 3.0", "invalid", "number 5.0"]);
}

#[test]
fn what_was_learned_is_followed() {
    let mut scanner = RowScanner::new(Rows::Lines);
    let mut sink = Cells::default();
    let row = |i: u32| match i % 3 {
        0 => format!("{{\"step\": {i}, \"loss\": 2.5e-{}, \"note\": \"abc\"}}\n", i % 9),
        1 => format!("{{\"step\": {i}, \"loss\": null, \"note\": null}}\n"),
        _ => format!("{{\"step\": {i}, \"eval\": {{\"loss\": [1, {i}], \"x\": {{}}}}}}\n"),
    };
    for i in 0..300 {
        let row = row(i);
        assert_eq!(scanner.object(row.as_bytes(), false, &mut sink), Ok(row.len() - 1));
        if i >= 3 {
            // A way that leads to an object that is a cell of its own is tokenised each time, and known.
            assert_eq!(scanner.learned(), 7, "row {i}");
        }
    }
    assert_eq!(sink.names, ["step", "loss", "note", "eval/loss", "eval/x"]);
}

#[test]
fn columns_are_bounded() {
    let mut scanner = RowScanner::new(Rows::Free);
    let mut sink = Cells::default();
    let mut text = String::from("{");
    for i in 0..MAX_COLUMNS + 10 {
        text.push_str(&format!("\"k{i}\":{i},"));
    }
    text.push('}');
    for _ in 0..2 {
        assert_eq!(scanner.object(text.as_bytes(), false, &mut sink), Ok(text.len()));
        assert_eq!(sink.names.len(), MAX_COLUMNS);
    }
    let long = format!("{{\"{}\": 1}}", "k".repeat(10_000));
    assert_eq!(scanner.object(long.as_bytes(), false, &mut sink), Ok(long.len()));
    assert_eq!(sink.names.len(), MAX_COLUMNS);
}

#[test]
fn deep_objects_are_one_cell() {
    let text = format!("{}1{}", "{\"a\":".repeat(40), "}".repeat(40));
    let mut sink = Cells::default();
    assert_eq!(RowScanner::new(Rows::Free).object(text.as_bytes(), false, &mut sink), Ok(text.len()));
    assert_eq!(sink.names, [["a"; MAX_DEPTH].join("/")]);
}
