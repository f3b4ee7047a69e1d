//! The loop of integer activations: groups of 32 columns, a few of which a lane has under way. Loads come in one of two orders.
//!
//! ```text
//! without a prologue     load a b · wait · multiply a b · load c d · multiply c d
//! behind one             load a b · wait, norm · multiply a · load c · multiply b · load d · multiply c d · load the next pass's a b · sums
//! ```
//!
//! So it stands in the text. Whether a driver leaves the first loads in front of the wait is a matter of `MatMulTile::early`.

use super::body::Body;
use crate::activations;
use crate::group_weights::GroupWeights;

impl Body<'_> {
    /// Groups that a lane has under way, and turns in which it has had all of its own.
    fn turns(&self) -> (usize, usize) {
        let own = activations::groups(self.spec.layout.cols).div_ceil(self.spec.tile.k_slices);
        let unroll = self.spec.tile.unroll.min(own);
        (unroll, own.div_ceil(unroll))
    }

    /// Without a prologue, a turn's groups are loaded before the first is multiplied, those of the first turn in front of the
    /// wait. It takes fewer registers than the other order.
    pub(super) fn groups_in_turns(&mut self) {
        self.bases(1, "let ", "first_tile");
        let (unroll, turns) = self.turns();
        let step = unroll * self.spec.tile.k_slices;
        self.line(1, "var k_group = slice;".into());
        if self.spec.chained {
            self.load_turn(1, "let ");
            self.wait();
            self.multiply_turn(1, (turns == 1).then_some(0));
            self.line(1, format!("k_group += {step}u;"));
        }
        if !self.spec.chained || turns > 1 {
            self.line(1, format!("for (; k_group < INPUT_GROUPS; k_group += {step}u) {{"));
            self.load_turn(2, "let ");
            self.multiply_turn(2, Some(turns - 1));
            self.line(1, "}".into());
        }
    }

    /// Behind a prologue, each group that is multiplied makes room for the one `unroll` groups on. The next pass's first groups are
    /// loaded before this one's sums are put together, and the very first while the prologue works.
    pub(super) fn groups_rolling(&mut self) {
        let (unroll, turns) = self.turns();
        if turns > 1 {
            self.line(1, format!("for (var run = 1u; run < {turns}u; run++) {{"));
            for part in 0..unroll {
                self.multiply_group(2, part);
                self.load_group(2, "", part + unroll, part);
            }
            self.line(2, format!("k_group += {}u;", unroll * self.spec.tile.k_slices));
            self.line(1, "}".into());
        }
        self.multiply_turn(1, Some(turns - 1));
        if self.spec.tile.passes > 1 {
            self.line(1, "if (turn + 1u < PASSES) {".into());
            self.bases(2, "", "first_tile + GROUP_TILES * TILES_PER_LANE");
            self.line(2, "k_group = slice;".into());
            self.load_turn(2, "");
            self.line(1, "}".into());
        }
    }

    /// Those of the first pass.
    pub(super) fn first_groups(&mut self) {
        let group_tile = "group.y * PASSES * GROUP_TILES + lane / (8u * K_SLICES)";
        self.bases(1, "var ", &format!("({group_tile}) * TILES_PER_LANE"));
        self.line(1, "var k_group = slice;".into());
        self.load_turn(1, "var ");
    }

    /// The groups of a turn that begins at `k_group`; `declare` as in `bases`.
    fn load_turn(&mut self, indent: usize, declare: &str) {
        for part in 0..self.turns().0 {
            self.load_group(indent, declare, part, part);
        }
    }

    /// The same, loaded. `turns_before`: this may be the last turn, behind so many, in which lanes past the last group have loaded
    /// it, too, and do not multiply it. `None`: all lanes have all of their groups.
    fn multiply_turn(&mut self, indent: usize, turns_before: Option<usize>) {
        let k_slices = self.spec.tile.k_slices;
        let unroll = self.turns().0;
        let groups = activations::groups(self.spec.layout.cols);
        for part in 0..unroll {
            let is_whole = turns_before.is_none_or(|turns| (turns * unroll + part + 1) * k_slices <= groups);
            if is_whole {
                self.multiply_group(indent, part);
                continue;
            }
            self.line(indent, format!("if (k_group + {}u < INPUT_GROUPS) {{", part * k_slices));
            self.multiply_group(indent + 1, part);
            self.line(indent, "}".into());
        }
    }

    /// Words and parameters of every tile for the lane's group number `ahead` behind `k_group`, which is number `part` of those under
    /// way; `declare` as in `bases`.
    fn load_group(&mut self, indent: usize, declare: &str, ahead: usize, part: usize) {
        let ahead = ahead * self.spec.tile.k_slices;
        let group = format!("group_{part}");
        self.line(indent, format!("{declare}{group} = min(k_group + {ahead}u, INPUT_GROUPS - 1u);"));
        for tile in self.tiles() {
            let name = format!("{part}_{tile}");
            let weights = self.group_weights(&name);
            self.line(indent, format!("let at_{name} = base_{tile} + {} * BLOCK_WORDS;", weights.block(&group)));
            self.lines(indent, weights.load(declare, "weights", &group));
        }
    }

    fn multiply_group(&mut self, indent: usize, part: usize) {
        let planes = self.spec.input.precision().expect("codes").planes();
        for tile in self.tiles() {
            let unpacked = self.group_weights(&format!("{part}_{tile}")).unpack();
            self.lines(indent, unpacked);
        }
        for column in 0..self.spec.tile.columns {
            let x = format!("{part}_{column}");
            let row = format!("input_row + {column}u");
            let word = format!("group_word_of({row}, group_{part})");
            let quad = |quad| format!("code_quads({row}, group_{part} * {}u + {quad}u)", 2 * planes);
            let activations = self.group_weights("").activations(&x, planes, &word, quad);
            self.lines(indent, activations);
            for tile in self.tiles() {
                let (scale, sum) = self.group_weights(&format!("{part}_{tile}")).product(&x, planes);
                self.line(indent, format!("acc_{tile}_{column} = fma({scale}, f32({sum}), acc_{tile}_{column});"));
            }
        }
    }

    fn group_weights<'n>(&self, name: &'n str) -> GroupWeights<'n> {
        GroupWeights { format: self.spec.layout.format, row: "row", name }
    }
}
