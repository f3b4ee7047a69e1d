// The last token that row `row` of the step attends to: its own or, of a row of an image, the image's last.
fn last_seen(row: u32) -> u32 {
    let token = step.rows[row].token;
    let behind = select(0u, ${IMAGE_ROWS - 1}u - token % ${IMAGE_NUMBERS}u, token >= ${IMAGE_ROW});
    return step.rows[row].position + behind;
}
