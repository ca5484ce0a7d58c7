/** URI templates (RFC 6570) whose variables are texts: which there are, and the address that values make. Pure. */

interface Operator {
  /** What stands before the first value. */
  first: string;
  separator: string;
  /** Whether a value has its variable's name before it. */
  isNamed: boolean;
  /** Whether characters with a meaning in addresses stay as they are. */
  keepsReserved: boolean;
}

const PLAIN: Operator = { first: "", separator: ",", isNamed: false, keepsReserved: false };
const OPERATORS: Readonly<Record<string, Operator>> = {
  "": PLAIN,
  "+": { ...PLAIN, keepsReserved: true },
  "#": { ...PLAIN, first: "#", keepsReserved: true },
  ".": { ...PLAIN, first: ".", separator: "." },
  "/": { ...PLAIN, first: "/", separator: "/" },
  ";": { ...PLAIN, first: ";", separator: ";", isNamed: true },
  "?": { ...PLAIN, first: "?", separator: "&", isNamed: true },
  "&": { ...PLAIN, first: "&", separator: "&", isNamed: true },
};
const EXPRESSION = /\{([+#./;?&]?)([^{}]*)\}/g;

export interface TemplateVariable {
  name: string;
  /** Whether an address without it makes no sense: it stands for a part of the path. */
  isRequired: boolean;
}

/** Returns the variables of a template, each once, in their order. */
export function variablesOf(template: string): TemplateVariable[] {
  const found = new Map<string, TemplateVariable>();
  for (const [, operator = "", names = ""] of template.matchAll(EXPRESSION)) {
    for (const { name } of specsOf(names)) {
      if (!found.has(name)) found.set(name, { name, isRequired: operator === "" || operator === "+" });
    }
  }
  return [...found.values()];
}

/** Returns the address that values make of a template. A value that is missing or empty is left out. */
export function expandTemplate(template: string, values: Readonly<Record<string, string>>): string {
  return template.replace(EXPRESSION, (_, sign: string, names: string) => {
    const operator = OPERATORS[sign] ?? PLAIN;
    const parts = specsOf(names)
      .map(({ name, length }) => ({ name, value: [...(values[name] ?? "")].slice(0, length).join("") }))
      .filter(({ value }) => value !== "")
      .map(({ name, value }) => `${operator.isNamed ? `${name}=` : ""}${encode(value, operator.keepsReserved)}`);
    return parts.length === 0 ? "" : operator.first + parts.join(operator.separator);
  });
}

function specsOf(names: string): { name: string; length: number | undefined }[] {
  return names.split(",").flatMap((spec) => {
    const [name = "", length] = spec.replace(/\*$/, "").split(":");
    return name === "" ? [] : [{ name, length: length === undefined ? undefined : Number(length) }];
  });
}

function encode(value: string, keepsReserved: boolean): string {
  // Half a pair of surrogates cannot be encoded.
  const text = value.replace(/\p{Surrogate}/gu, "\uFFFD");
  if (keepsReserved)
    return encodeURI(text)
      .replace(/%25(?=[0-9A-Fa-f]{2})/g, "%")
      .replace(/%5B|%5D/g, decodeURIComponent);
  return encodeURIComponent(text).replace(/[!'()*]/g, (each) => `%${each.charCodeAt(0).toString(16).toUpperCase()}`);
}
