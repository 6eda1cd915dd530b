//! JSON as the contract has it: an object is an object.
//!
//! Derived readers also take a list in place of an object, field by field in their order. Nobody asked
//! for that second spelling and its meaning would move with every new field, so a reader in front of
//! the real one refuses it, at every level of a body.

use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, EnumAccess, Error, MapAccess, SeqAccess,
    Unexpected, VariantAccess, Visitor,
};

/// Reads a whole body. An error comes with the path of the field it is about.
pub fn from_slice<T: for<'de> Deserialize<'de>>(
    bytes: &[u8],
) -> Result<T, (String, serde_json::Error)> {
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(Strict(&mut reader))
        .map_err(|error| (error.path().to_string(), error.into_inner()))?;
    reader.end().map_err(|error| (String::new(), error))?;
    Ok(value)
}

/// What a reader asked for, which decides what a list may stand for.
#[derive(Clone, Copy)]
enum Asked {
    /// A struct: a list is refused.
    Object,
    /// Whatever comes, to look at it before deciding (enums with a tag inside). A list is refused;
    /// what is below is taken in as it is, and lists are fine there.
    Anything,
    /// Something that says itself what it takes.
    Other,
}

/// A reader, or a seed for one, with the same care for everything below it.
struct Strict<T>(T);

struct Watched<V> {
    visitor: V,
    asked: Asked,
}

fn watched<V>(visitor: V, asked: Asked) -> Watched<V> {
    Watched { visitor, asked }
}

macro_rules! ask {
    ($($name:ident),*) => {$(
        fn $name<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
            self.0.$name(watched(visitor, Asked::Other))
        }
    )*};
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Strict<D> {
    type Error = D::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.0.deserialize_any(watched(visitor, Asked::Anything))
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.0.deserialize_ignored_any(visitor)
    }

    ask!(
        deserialize_bool,
        deserialize_i8,
        deserialize_i16,
        deserialize_i32,
        deserialize_i64,
        deserialize_i128,
        deserialize_u8,
        deserialize_u16,
        deserialize_u32,
        deserialize_u64,
        deserialize_u128,
        deserialize_f32,
        deserialize_f64,
        deserialize_char,
        deserialize_str,
        deserialize_string,
        deserialize_bytes,
        deserialize_byte_buf,
        deserialize_option,
        deserialize_unit,
        deserialize_seq,
        deserialize_map,
        deserialize_identifier
    );

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0
            .deserialize_unit_struct(name, watched(visitor, Asked::Other))
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0
            .deserialize_newtype_struct(name, watched(visitor, Asked::Other))
    }

    fn deserialize_tuple<V: Visitor<'de>>(
        self,
        length: usize,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0
            .deserialize_tuple(length, watched(visitor, Asked::Other))
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        length: usize,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0
            .deserialize_tuple_struct(name, length, watched(visitor, Asked::Other))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0
            .deserialize_struct(name, fields, watched(visitor, Asked::Object))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0
            .deserialize_enum(name, variants, watched(visitor, Asked::Other))
    }

    fn is_human_readable(&self) -> bool {
        self.0.is_human_readable()
    }
}

macro_rules! pass {
    ($($name:ident($kind:ty)),*) => {$(
        fn $name<E: Error>(self, value: $kind) -> Result<V::Value, E> {
            self.visitor.$name(value)
        }
    )*};
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Watched<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.visitor.expecting(f)
    }

    pass!(
        visit_bool(bool),
        visit_i64(i64),
        visit_i128(i128),
        visit_u64(u64),
        visit_u128(u128),
        visit_f64(f64),
        visit_char(char),
        visit_str(&str),
        visit_borrowed_str(&'de str),
        visit_string(String),
        visit_bytes(&[u8]),
        visit_borrowed_bytes(&'de [u8]),
        visit_byte_buf(Vec<u8>)
    );

    fn visit_none<E: Error>(self) -> Result<V::Value, E> {
        self.visitor.visit_none()
    }

    fn visit_unit<E: Error>(self) -> Result<V::Value, E> {
        self.visitor.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, below: D) -> Result<V::Value, D::Error> {
        self.visitor.visit_some(Strict(below))
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, below: D) -> Result<V::Value, D::Error> {
        self.visitor.visit_newtype_struct(Strict(below))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<V::Value, A::Error> {
        match self.asked {
            Asked::Object | Asked::Anything => {
                Err(A::Error::invalid_type(Unexpected::Seq, &"an object"))
            }
            Asked::Other => self.visitor.visit_seq(Strict(items)),
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, entries: A) -> Result<V::Value, A::Error> {
        match self.asked {
            Asked::Anything => self.visitor.visit_map(entries),
            Asked::Object | Asked::Other => self.visitor.visit_map(Strict(entries)),
        }
    }

    fn visit_enum<A: EnumAccess<'de>>(self, variant: A) -> Result<V::Value, A::Error> {
        self.visitor.visit_enum(Strict(variant))
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Strict<S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, below: D) -> Result<S::Value, D::Error> {
        self.0.deserialize(Strict(below))
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Strict<A> {
    type Error = A::Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, A::Error> {
        self.0.next_element_seed(Strict(seed))
    }

    fn size_hint(&self) -> Option<usize> {
        self.0.size_hint()
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Strict<A> {
    type Error = A::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, A::Error> {
        self.0.next_key_seed(seed)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        self.0.next_value_seed(Strict(seed))
    }

    fn size_hint(&self) -> Option<usize> {
        self.0.size_hint()
    }
}

impl<'de, A: EnumAccess<'de>> EnumAccess<'de> for Strict<A> {
    type Error = A::Error;
    type Variant = Strict<A::Variant>;

    fn variant_seed<S: DeserializeSeed<'de>>(
        self,
        seed: S,
    ) -> Result<(S::Value, Self::Variant), A::Error> {
        let (name, variant) = self.0.variant_seed(seed)?;
        Ok((name, Strict(variant)))
    }
}

impl<'de, A: VariantAccess<'de>> VariantAccess<'de> for Strict<A> {
    type Error = A::Error;

    fn unit_variant(self) -> Result<(), A::Error> {
        self.0.unit_variant()
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, A::Error> {
        self.0.newtype_variant_seed(Strict(seed))
    }

    fn tuple_variant<V: Visitor<'de>>(
        self,
        length: usize,
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        self.0.tuple_variant(length, watched(visitor, Asked::Other))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        self.0
            .struct_variant(fields, watched(visitor, Asked::Object))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Serialize};

    use super::from_slice;

    #[derive(Debug, PartialEq, Default, Serialize, Deserialize)]
    #[serde(deny_unknown_fields, default)]
    struct Outer {
        plain: Inner,
        maybe: Option<Inner>,
        many: Vec<Inner>,
        named: BTreeMap<String, Inner>,
        one_of: Option<Choice>,
        tagged: Option<Tagged>,
        pair: Option<(u8, u8)>,
        boxed: Option<Wrapped>,
    }

    #[derive(Debug, PartialEq, Default, Serialize, Deserialize)]
    #[serde(deny_unknown_fields, default)]
    struct Inner {
        number: u8,
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Wrapped(Inner);

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    enum Choice {
        Plain,
        Named { number: u8 },
        Holds(Inner),
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(tag = "type", rename_all = "snake_case")]
    enum Tagged {
        Fetch { name: String, list: Vec<u8> },
    }

    #[test]
    fn what_is_right_reads_as_ever() {
        for text in [
            r#"{}"#,
            r#"{"plain":{"number":1},"maybe":null,"many":[{"number":2},{}],"pair":[1,2]}"#,
            r#"{"maybe":{"number":3},"named":{"a":{"number":4}},"boxed":{"number":5}}"#,
            r#"{"one_of":"Plain"}"#,
            r#"{"one_of":{"Named":{"number":1}}}"#,
            r#"{"one_of":{"Holds":{"number":1}}}"#,
            r#"{"tagged":{"type":"fetch","name":"x","list":[1,2]}}"#,
        ] {
            let usual: Outer = serde_json::from_str(text).unwrap();
            let strict: Outer = from_slice(text.as_bytes()).unwrap();
            assert_eq!(usual, strict, "{text}");
        }
    }

    #[test]
    fn a_list_is_no_object_at_any_depth() {
        for text in [
            r#"[{"number":1}]"#,
            r#"{"plain":[1]}"#,
            r#"{"maybe":[1]}"#,
            r#"{"many":[[1]]}"#,
            r#"{"named":{"a":[1]}}"#,
            r#"{"one_of":{"Named":[1]}}"#,
            r#"{"one_of":{"Holds":[1]}}"#,
            r#"{"tagged":["fetch","x",[]]}"#,
            r#"{"boxed":[1]}"#,
        ] {
            let (_, error) = from_slice::<Outer>(text.as_bytes()).unwrap_err();
            assert!(error.to_string().contains("object"), "{text}: {error}");
            assert!(error.line() > 0, "says where: {error}");
        }
    }

    #[test]
    fn what_follows_a_body_is_refused() {
        assert!(from_slice::<Inner>(b"{} {}").is_err());
        assert!(from_slice::<Inner>(b"{}  \n").is_ok());
    }
}
