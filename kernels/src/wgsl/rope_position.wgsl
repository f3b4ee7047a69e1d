// The position of which a rotary pair has the angle in row `row`: rows of images have several, and what follows an image continues behind
// the largest of them, see `unicorn_artifact::step::rope_word`.
fn rope_position(row: u32, pair: u32) -> u32 {
    let word = step.rows[row].rope_variant;
    let position = step.rows[row].position - word % (1u << ${ROPE_SHIFT_BITS});
//#if PLACES
    let across = word >> ${ROPE_SHIFT_BITS};
    if (across > 0u) {
        let place = step.rows[row].token % ${IMAGE_NUMBERS}u;
        let first = position - place;
        if (pair % 3u == 1u && pair < ${PAIRS_DOWN}u) {
            return first + place / across;
        }
        return first + select(0u, place % across, pair % 3u == 2u && pair < ${PAIRS_ACROSS}u);
    }
//#endif
    return position;
}
