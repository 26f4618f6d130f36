//! A part of the zone's account that something other than a block of memory holds: a context, a module, an array. It is
//! given back when that goes, whichever way it goes.

use std::sync::Arc;

use cuda_abi::error::CUDA_ERROR_OUT_OF_MEMORY;

use super::Memory;
use crate::Refusal;
use control::BrokerLink;

pub(crate) struct Charge {
    ledger: Arc<BrokerLink>,
    /// The GPU's index.
    gpu: u32,
    bytes: u64,
}

impl Memory {
    /// Asks the ledger for memory that the driver is about to take for itself. `gpu`: an index.
    pub(crate) fn charge(&self, gpu: u32, bytes: u64) -> Result<Charge, Refusal> {
        if bytes > 0 {
            self.ledger.charge(gpu, bytes).map_err(|_| Refusal::Code(CUDA_ERROR_OUT_OF_MEMORY))?;
        }
        Ok(Charge { ledger: self.ledger.clone(), gpu, bytes })
    }
}

impl Memory {
    /// What the ledger has granted already.
    pub(crate) fn granted(&self, gpu: u32, bytes: u64) -> Charge {
        Charge { ledger: self.ledger.clone(), gpu, bytes }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.ledger.release(self.gpu, self.bytes);
        }
    }
}
