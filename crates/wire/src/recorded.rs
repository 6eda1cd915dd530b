//! Messages of older versions, as bytes that their code wrote: `fixtures/v0/WIRE.txt`, a name and the bytes in
//! hexadecimal on each line. They are never changed; new versions get files of their own.

/// Name and bytes of each message in such a file.
pub fn read(text: &str) -> Vec<(&str, Vec<u8>)> {
    text.lines()
        .map(|line| {
            let (name, digits) = line.split_once(' ').expect("a name, then its bytes");
            (name, hex::decode(digits).expect("hexadecimal digits"))
        })
        .collect()
}
