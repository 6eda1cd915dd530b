//! Messages of older versions, as bytes that their code wrote: `fixtures/v0/WIRE.txt`, a name and the bytes in
//! hexadecimal on each line. They are never changed; new versions get files of their own.

/// Name and bytes of each message in such a file.
pub fn read(text: &str) -> Vec<(&str, Vec<u8>)> {
    text.lines()
        .map(|line| {
            let (name, digits) = line.split_once(' ').expect("a name, then its bytes");
            let bytes = digits.as_bytes().chunks(2).map(|pair| {
                let pair = std::str::from_utf8(pair).expect("digits");
                u8::from_str_radix(pair, 16).expect("two hexadecimal digits")
            });
            (name, bytes.collect())
        })
        .collect()
}
