//! The families of AMD GPUs that the reports are made for: which target runs there, and what its arithmetic is.

use unicorn_spirv::Target;

/// A family, and the device of it that times are estimated for.
pub struct Family {
    /// Name of the family in RADV_FORCE_FAMILY.
    pub name: &'static str,
    /// Name of the chip, a part of a device's name.
    pub chip: &'static str,
    /// A device of the family.
    pub device: &'static str,
    /// Preset of the target that it takes.
    pub target: &'static str,
    pub compute_units: f64,
    /// SIMDs of a compute unit, each with lanes of its own.
    pub simds_per_unit: f64,
    pub hz: f64,
    pub bytes_per_s: f64,
    /// Cycles of a SIMD for one plain vector instruction of a whole subgroup.
    pub vector_cycles: f64,
    /// Cycles of a SIMD for one 16×16×16 product of halves; `None`: it has no such instruction.
    pub matrix_cycles: Option<f64>,
    /// Registers that each operand of a matrix product takes: gfx11 keeps every value twice, gfx12 once.
    pub matrix_operand_registers: u32,
}

/// Figures of a device are its vendor's: compute units, boost clock, memory. Cycles are those of the instruction set guides: a subgroup of
/// 32 lanes in one cycle on RDNA, 64 lanes in four on GCN; a 16×16×16 product of halves in 32 cycles on RDNA 3.
pub const FAMILIES: [Family; 7] = [
    RDNA3,
    Family {
        name: "gfx1151",
        chip: "GFX1151",
        device: "Radeon 8060S (Strix Halo), LPDDR5X-8000",
        compute_units: 40.0,
        hz: 2.9e9,
        bytes_per_s: 256e9,
        ..RDNA3
    },
    Family {
        name: "navi31",
        chip: "NAVI31",
        device: "Radeon RX 7900 XTX",
        compute_units: 96.0,
        hz: 2.5e9,
        bytes_per_s: 960e9,
        ..RDNA3
    },
    Family {
        name: "gfx1201",
        chip: "GFX1201",
        device: "Radeon RX 9070 XT",
        target: "rdna4",
        compute_units: 64.0,
        hz: 2.97e9,
        bytes_per_s: 640e9,
        // 195 TFLOP/s of halves with f32 sums are 512 in a cycle of each of 128 SIMDs.
        matrix_cycles: Some(16.0),
        matrix_operand_registers: 4,
        ..RDNA3
    },
    Family {
        name: "navi21",
        chip: "NAVI21",
        device: "Radeon RX 6900 XT",
        compute_units: 80.0,
        hz: 2.25e9,
        bytes_per_s: 512e9,
        ..RDNA2
    },
    RDNA2,
    Family {
        name: "renoir",
        chip: "RENOIR",
        device: "Radeon Vega 8 (Ryzen 4000), DDR4-3200",
        target: "gcn",
        compute_units: 8.0,
        simds_per_unit: 4.0,
        hz: 1.75e9,
        bytes_per_s: 51.2e9,
        vector_cycles: 4.0,
        matrix_cycles: None,
        matrix_operand_registers: 0,
    },
];

/// The 780M, whose instructions all of RDNA 3 have.
const RDNA3: Family = Family {
    name: "phoenix",
    chip: "PHOENIX",
    device: "Radeon 780M, DDR5-5600",
    target: "rdna3",
    compute_units: 12.0,
    simds_per_unit: 2.0,
    hz: 2.7e9,
    bytes_per_s: 89.6e9,
    vector_cycles: 1.0,
    matrix_cycles: Some(32.0),
    matrix_operand_registers: 8,
};

/// The 680M, whose instructions all of RDNA 2 have.
const RDNA2: Family = Family {
    name: "rembrandt",
    chip: "REMBRANDT",
    device: "Radeon 680M, LPDDR5-6400",
    target: "rdna2",
    compute_units: 12.0,
    simds_per_unit: 2.0,
    hz: 2.4e9,
    bytes_per_s: 102.4e9,
    vector_cycles: 1.0,
    matrix_cycles: None,
    matrix_operand_registers: 0,
};

impl Family {
    /// The family of this name.
    pub fn named(name: &str) -> Option<&'static Family> {
        FAMILIES.iter().find(|family| family.name == name)
    }

    /// The target that its devices take.
    ///
    /// # Panics
    /// If there is no such preset.
    pub fn target(&self) -> Target {
        unicorn_spirv::target::by_name(self.target).expect("a preset")
    }

    /// Lanes that a SIMD processes in a cycle, on average over an instruction.
    pub fn lanes_per_cycle(&self) -> f64 {
        let subgroup = if self.vector_cycles > 1.0 { 64.0 } else { 32.0 };
        subgroup / self.vector_cycles
    }

    pub fn simds(&self) -> f64 {
        self.compute_units * self.simds_per_unit
    }
}
