//! Protobuf's wire format: keys, varints and lengths. Every read is checked, and every complaint names its offset.

/// A part of a body, and its offset in the body.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slice<'a> {
    pub bytes: &'a [u8],
    pub at: usize,
}

/// One field's encoded value.
#[derive(Clone, Copy, Debug)]
pub(super) enum Wire<'a> {
    Varint(u64),
    Fixed64(u64),
    Bytes(Slice<'a>),
    /// Four bytes or a group, which no message of Kubernetes has: skipped.
    Other,
}

/// Reads the fields of one message.
pub(super) struct Reader<'a> {
    whole: Slice<'a>,
    pos: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(whole: Slice<'a>) -> Self {
        Reader { whole, pos: 0 }
    }

    /// The next field's number and value, or `None` at the end.
    pub(super) fn field(&mut self) -> Result<Option<(u32, Wire<'a>)>, String> {
        if self.pos >= self.whole.bytes.len() {
            return Ok(None);
        }
        let start = self.offset();
        let (number, wire_type) = self.key()?;
        let value = match wire_type {
            3 => {
                self.skip_group(start)?;
                Wire::Other
            }
            4 => return Err(format!("proto: wiretype end group for non-group at offset {start}")),
            other => self.value(other, start)?,
        };
        Ok(Some((number, value)))
    }

    /// The next varint, or `None` at the end: a packed list is nothing but these.
    pub(super) fn packed(&mut self) -> Result<Option<u64>, String> {
        if self.pos >= self.whole.bytes.len() { Ok(None) } else { self.varint().map(Some) }
    }

    fn offset(&self) -> usize {
        self.whole.at + self.pos
    }

    fn key(&mut self) -> Result<(u32, u8), String> {
        let start = self.offset();
        let key = self.varint()?;
        let number = u32::try_from(key >> 3).ok().filter(|number| (1..1 << 29).contains(number));
        let number = number.ok_or_else(|| format!("proto: illegal tag {} at offset {start}", key >> 3))?;
        Ok((number, (key & 7) as u8))
    }

    fn value(&mut self, wire_type: u8, start: usize) -> Result<Wire<'a>, String> {
        Ok(match wire_type {
            0 => Wire::Varint(self.varint()?),
            1 => Wire::Fixed64(u64::from_le_bytes(self.take(8)?.bytes.try_into().map_err(|_| self.ended())?)),
            2 => {
                let length = self.varint()?;
                Wire::Bytes(self.take(length)?)
            }
            5 => {
                self.take(4)?;
                Wire::Other
            }
            other => return Err(format!("proto: illegal wireType {other} at offset {start}")),
        })
    }

    /// Groups may nest, so their depth is counted rather than recursed into.
    fn skip_group(&mut self, start: usize) -> Result<(), String> {
        let mut depth = 1usize;
        while depth > 0 {
            match self.key()? {
                (_, 3) => depth += 1,
                (_, 4) => depth -= 1,
                (_, wire_type) => {
                    self.value(wire_type, start)?;
                }
            }
        }
        Ok(())
    }

    fn varint(&mut self) -> Result<u64, String> {
        let start = self.offset();
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = *self.whole.bytes.get(self.pos).ok_or_else(|| self.ended())?;
            self.pos += 1;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(format!("proto: integer overflow at offset {start}"))
    }

    fn take(&mut self, length: u64) -> Result<Slice<'a>, String> {
        let at = self.offset();
        let end = usize::try_from(length).ok().and_then(|length| self.pos.checked_add(length));
        let bytes = end.and_then(|end| self.whole.bytes.get(self.pos..end)).ok_or_else(|| self.ended())?;
        self.pos += bytes.len();
        Ok(Slice { bytes, at })
    }

    fn ended(&self) -> String {
        format!("unexpected EOF at offset {}", self.offset())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first(bytes: &[u8]) -> Result<Option<(u32, Wire<'_>)>, String> {
        Reader::new(Slice { bytes, at: 10 }).field()
    }

    #[test]
    fn a_length_beyond_the_end_is_an_error_with_an_offset() {
        assert_eq!(first(&[0x0a, 0x05, b'a']).unwrap_err(), "unexpected EOF at offset 12");
        let huge = [0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
        assert_eq!(first(&huge).unwrap_err(), "unexpected EOF at offset 21");
    }

    #[test]
    fn a_varint_that_never_ends_is_refused() {
        assert_eq!(first(&[0xff; 20]).unwrap_err(), "proto: integer overflow at offset 10");
    }

    #[test]
    fn groups_are_skipped_however_deep() {
        let mut bytes = vec![0x0b; 100_000];
        bytes.extend(vec![0x0c; 100_000]);
        assert!(matches!(first(&bytes), Ok(Some((1, Wire::Other)))));
        assert!(first(&[0x0c]).is_err());
    }

    #[test]
    fn field_zero_does_not_exist() {
        assert_eq!(first(&[0x00, 0x00]).unwrap_err(), "proto: illegal tag 0 at offset 10");
    }
}
