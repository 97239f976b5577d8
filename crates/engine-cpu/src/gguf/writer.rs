//! Writes small GGUF files for tests, valid or deliberately invalid.

use super::TensorType;

const ALIGNMENT: usize = 32;

#[derive(Default)]
pub(crate) struct GgufWriter {
    keys: u64,
    metadata: Vec<u8>,
    tensors: u64,
    infos: Vec<u8>,
    data: Vec<u8>,
}

impl GgufWriter {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    fn key(&mut self, key: &str, kind: u32) {
        self.keys += 1;
        put_string(&mut self.metadata, key);
        self.metadata.extend(kind.to_le_bytes());
    }

    fn array(&mut self, key: &str, item_kind: u32, count: usize) {
        self.key(key, 9);
        self.metadata.extend(item_kind.to_le_bytes());
        self.metadata.extend((count as u64).to_le_bytes());
    }

    pub(crate) fn u32(mut self, key: &str, value: u32) -> Self {
        self.key(key, 4);
        self.metadata.extend(value.to_le_bytes());
        self
    }

    pub(crate) fn f32(mut self, key: &str, value: f32) -> Self {
        self.key(key, 6);
        self.metadata.extend(value.to_le_bytes());
        self
    }

    pub(crate) fn bool(mut self, key: &str, value: bool) -> Self {
        self.key(key, 7);
        self.metadata.push(value.into());
        self
    }

    pub(crate) fn string(mut self, key: &str, value: &str) -> Self {
        self.key(key, 8);
        put_string(&mut self.metadata, value);
        self
    }

    pub(crate) fn strings(mut self, key: &str, values: &[&str]) -> Self {
        self.array(key, 8, values.len());
        for value in values {
            put_string(&mut self.metadata, value);
        }
        self
    }

    pub(crate) fn i32s(mut self, key: &str, values: &[i32]) -> Self {
        self.array(key, 5, values.len());
        self.metadata.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        self
    }

    pub(crate) fn f32s(mut self, key: &str, values: &[f32]) -> Self {
        self.array(key, 6, values.len());
        self.metadata.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        self
    }

    pub(crate) fn tensor(self, name: &str, dimensions: &[u64], kind: TensorType, bytes: &[u8]) -> Self {
        let offset = self.data.len() as u64;
        self.tensor_at(name, dimensions, kind, offset, bytes)
    }

    /// Adds a tensor whose entry claims any offset, right or wrong; its bytes go to the end of the data.
    pub(crate) fn tensor_at(
        mut self,
        name: &str,
        dimensions: &[u64],
        kind: TensorType,
        offset: u64,
        bytes: &[u8],
    ) -> Self {
        self.tensors += 1;
        put_string(&mut self.infos, name);
        self.infos.extend((dimensions.len() as u32).to_le_bytes());
        self.infos.extend(dimensions.iter().flat_map(|dimension| dimension.to_le_bytes()));
        self.infos.extend(kind.code().to_le_bytes());
        self.infos.extend(offset.to_le_bytes());
        self.data.extend(bytes);
        pad(&mut self.data);
        self
    }

    pub(crate) fn finish(self) -> Vec<u8> {
        let mut file = b"GGUF".to_vec();
        file.extend(3_u32.to_le_bytes());
        file.extend(self.tensors.to_le_bytes());
        file.extend(self.keys.to_le_bytes());
        file.extend(self.metadata);
        file.extend(self.infos);
        pad(&mut file);
        file.extend(self.data);
        file
    }
}

fn pad(bytes: &mut Vec<u8>) {
    bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
}

fn put_string(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend((text.len() as u64).to_le_bytes());
    bytes.extend(text.as_bytes());
}
