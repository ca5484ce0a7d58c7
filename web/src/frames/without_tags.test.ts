import { expect, it } from "vitest";
import { withoutTags } from "./without_tags";

it.each([
  ["A[one<br/>two] --> B[<b>bold</b>]", "A[one<br/>two] --> B[<b>bold</b>]"],
  ["A <--> B\nC <-- D\nclass X <<interface>>", "A <--> B\nC <-- D\nclass X <<interface>>"],
  ["A[<img src=x onerror=y>]", "A[\u2039img src=x onerror=y>]"],
  ["A[<b onclick=x>y</b>]", "A[\u2039b onclick=x>y</b>]"],
  ["A[<!-- --><script>x</script>]", "A[\u2039!-- -->\u2039script>x\u2039/script>]"],
  ["A[<img src=x onerror=y", "A[\u2039img src=x onerror=y"],
])("%j becomes %j", (source, plain) => {
  expect(withoutTags(source)).toBe(plain);
});
