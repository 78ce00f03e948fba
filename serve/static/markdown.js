// Markdown as elements. Text only ever becomes text nodes, so that no model's HTML is read as such; a link is made of
// an address of the web or of mail alone, and no image is loaded.

const FENCE = /^ {0,3}(`{3,}|~{3,}) *([^`\s]*)[^`]*$/;
const HEADING = /^ {0,3}(#{1,6}) (.*)$/;
const RULE = /^ {0,3}([-*_])(?: *\1){2,} *$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])( +|$)/;
const DIVIDER = /^\|?(?: *:?-+:? *\|)* *:?-+:? *\|?$/; // between the head and the rows of a table
const DEEPEST = 16; // lists and quotes inside each other

const INLINE = new RegExp([
  /\\([!-/:-@[-`{-~])/, // 1: an escaped character
  /(?<!`)(`+)(?!`)([^]*?[^`])\2(?!`)/, // 3: code
  /!?\[([^\]]{0,999})\]\(<?([^()<>\s]*(?:\([^()<>\s]*\)[^()<>\s]*)*)>?(?: +"[^"]*")?\)/, // 4, 5: a link or an image
  /<?(https?:\/\/[^\s<>]*[^\s<>.,:;!?"')\]*_])>?/, // 6: an address
  /(\*\*|__)(?=\S)([^]*?\S)\7(?!\*)/, // 8: strong
  /(?<![\p{L}\p{N}_*])([*_])(?![*_\s])([^]*?[^\s*_])\9(?![\p{L}\p{N}_*])/, // 10: emphasis
  /\*(?![*\s])([^*]*[^*\s])\*(?!\*)/, // 11: emphasis, also inside of words
  /~~(?=\S)([^]*?\S)~~/, // 12: struck out
].map((one) => one.source).join("|"), "gu");

export function markdown(text) {
  const fragment = document.createDocumentFragment();
  addBlocks(fragment, text.replaceAll("\t", "    ").split(/\r\n?|\n/), 0);
  return fragment;
}

function add(parent, name, text) {
  const node = document.createElement(name);
  if (text !== undefined) addInline(node, text);
  parent.append(node);
  return node;
}

function addBlocks(parent, lines, depth) {
  for (let i = 0; i < lines.length;) {
    const line = lines[i];
    let found;
    if (!line.trim()) {
      i += 1;
    } else if ((found = line.match(FENCE))) {
      i = addCode(parent, lines, i, found[1], found[2]);
    } else if ((found = line.match(HEADING))) {
      add(parent, `h${Math.min(6, found[1].length + 3)}`, found[2].replace(/ #+ *$/, "").trim()); // below the page's
      i += 1;
    } else if (RULE.test(line)) {
      add(parent, "hr");
      i += 1;
    } else if (QUOTE.test(line) && depth < DEEPEST) {
      const end = endOf(lines, i, (one) => QUOTE.test(one));
      addBlocks(add(parent, "blockquote"), lines.slice(i, end).map((one) => one.replace(QUOTE, "")), depth + 1);
      i = end;
    } else if (ITEM.test(line) && depth < DEEPEST) {
      i = addList(parent, lines, i, depth);
    } else if (isTable(lines, i)) {
      i = addTable(parent, lines, i);
    } else {
      const end = endOf(lines, i + 1, (one, at) => one.trim() && !startsBlock(lines, at));
      add(parent, "p", lines.slice(i, end).map((one) => one.trim()).join("\n"));
      i = end;
    }
  }
}

// The first line from `start` on that does not belong.
function endOf(lines, start, belongs) {
  let end = start;
  while (end < lines.length && belongs(lines[end], end)) end += 1;
  return end;
}

function startsBlock(lines, i) {
  return [FENCE, HEADING, RULE, QUOTE, ITEM].some((kind) => kind.test(lines[i])) || isTable(lines, i);
}

function addCode(parent, lines, start, fence, language) {
  const closes = new RegExp(`^ {0,3}${fence[0]}{${fence.length},} *$`);
  const end = endOf(lines, start + 1, (one) => !closes.test(one)); // code that is still being written goes to the end
  const code = add(add(parent, "pre"), "code");
  code.textContent = lines.slice(start + 1, end).join("\n");
  if (language) code.title = language;
  return end + 1;
}

function addList(parent, lines, start, depth) {
  const first = lines[start].match(ITEM)[2];
  const ordered = /\d/.test(first);
  const list = add(parent, ordered ? "ol" : "ul");
  if (ordered) list.start = parseInt(first, 10);
  let i = start;
  for (;;) {
    const found = i < lines.length && !RULE.test(lines[i]) && lines[i].match(ITEM);
    if (!found || found[2].at(-1) !== first.at(-1)) return i;
    const indent = found[1].length + found[2].length + 1;
    const within = (one) => !one.trim() || one.search(/\S/) >= Math.min(indent, 2 + found[1].length);
    const goesOn = (one, at) => within(one) || (lines[at - 1].trim() && !startsBlock(lines, at));
    const end = endOf(lines, i + 1, goesOn);
    const rest = lines.slice(i + 1, end).map((one) => one.slice(Math.min(indent, Math.max(0, one.search(/\S/)))));
    addBlocks(add(list, "li"), [lines[i].slice(found[0].length), ...rest], depth + 1);
    i = end;
  }
}

const cellsOf = (line) => line.trim().replace(/^\||(?<!\\)\|$/g, "").split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));

function isTable(lines, i) {
  const next = lines[i + 1];
  return next !== undefined && lines[i].includes("|") && DIVIDER.test(next.trim())
    && cellsOf(lines[i]).length === cellsOf(next).length;
}

function addTable(parent, lines, start) {
  const frame = add(parent, "div"); // scrolls sideways
  frame.className = "table";
  const table = add(frame, "table");
  const head = cellsOf(lines[start]);
  const row = add(add(table, "thead"), "tr");
  for (const cell of head) add(row, "th", cell);
  const end = endOf(lines, start + 2, (one) => one.trim() && one.includes("|"));
  const body = add(table, "tbody");
  for (const line of lines.slice(start + 2, end)) {
    const cells = cellsOf(line);
    const next = add(body, "tr");
    head.forEach((_, i) => add(next, "td", cells[i] || ""));
  }
  return end;
}

function addInline(parent, text) {
  let place = 0;
  for (const found of text.matchAll(INLINE)) {
    parent.append(text.slice(place, found.index));
    place = found.index + found[0].length;
    const [whole, escaped, , code, label, address, bare, , strong, , emphasis, inWord, struck] = found;
    if (escaped !== undefined) parent.append(escaped);
    else if (code !== undefined) add(parent, "code").textContent = code.replace(/^ (.*\S.*) $/s, "$1");
    else if (address !== undefined) addLink(parent, label || address, address, whole);
    else if (bare !== undefined) addLink(parent, bare, bare, whole);
    else if (strong !== undefined) add(parent, "strong", strong);
    else if (struck !== undefined) add(parent, "del", struck);
    else add(parent, "em", emphasis === undefined ? inWord : emphasis);
  }
  parent.append(text.slice(place));
}

function addLink(parent, label, address, source) {
  if (!/^(https?:\/\/|mailto:)/i.test(address) || !URL.canParse(address)) {
    parent.append(source); // of another kind, or within this page: shown as it was written
    return;
  }
  const link = add(parent, "a");
  link.textContent = label;
  link.href = link.title = address;
  link.rel = "noopener noreferrer nofollow";
  link.target = "_blank";
}
