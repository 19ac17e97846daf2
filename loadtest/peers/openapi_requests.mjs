// For each operation of a description: values that fit its schemas, and the request that swagger-client makes of them.
//
// Arguments: the description's file. Standard output: a JSON list of {operation, parameters, body, request}, where request is
// {method, url, headers, body}; operations that swagger-client cannot send (files) have none.
import { readFileSync } from 'node:fs';
import SwaggerClient from 'swagger-client';

const spec = JSON.parse(readFileSync(process.argv[2], 'utf8'));

function resolve(value) {
  while (value && typeof value.$ref === 'string') {
    const steps = value.$ref.slice(2).split('/').map((s) => decodeURIComponent(s).replaceAll('~1', '/').replaceAll('~0', '~'));
    value = steps.reduce((at, step) => at[step], spec);
  }
  return value;
}

// A value that fits a schema, as well as a plain reading of it can tell.
function sample(schema, depth = 0) {
  schema = resolve(schema) ?? {};
  if (schema === true) return 'x';
  if (schema.const !== undefined) return schema.const;
  if (schema.enum) return schema.enum[0];
  const type = Array.isArray(schema.type) ? schema.type[0] : schema.type;
  const choice = schema.oneOf ?? schema.anyOf;
  if (choice && !schema.properties) return sample(choice[0], depth + 1);
  if (schema.allOf && !schema.properties) return Object.assign({}, ...schema.allOf.map((s) => sample(s, depth + 1)));
  if (type === 'object' || schema.properties) {
    const out = {};
    // In order, as the caller of this script will send them.
    for (const [name, property] of Object.entries(schema.properties ?? {}).sort()) {
      const required = (schema.required ?? []).includes(name);
      if (resolve(property).readOnly || (depth > 2 && !required)) continue;
      out[name] = sample(property, depth + 1);
    }
    for (const rule of [schema.oneOf, schema.anyOf]) Object.assign(out, rule && typeof sample(rule[0], depth + 1) === 'object' ? sample(rule[0], depth + 1) : {});
    return out;
  }
  if (type === 'array') {
    const item = sample(schema.items, depth + 1);
    return Array.from({ length: Math.min(Math.max(schema.minItems ?? 2, schema.uniqueItems ? 1 : 2), schema.maxItems ?? 2) }, () => item);
  }
  if (type === 'integer' || type === 'number') return Math.min(Math.max(schema.minimum ?? 7, 7), schema.maximum ?? 7);
  if (type === 'boolean') return true;
  if (type === 'null') return null;
  const formats = { 'date-time': '2026-01-02T03:04:05Z', date: '2026-01-02', uri: 'https://h/a?b=c&d', email: 'a@h', uuid: '3f2504e0-4f89-11d3-9a0c-0305e82c3301' };
  if (formats[schema.format]) return formats[schema.format];
  if (schema.pattern) return schema.example ?? schema.default ?? 'abc123';
  const text = 'a b/ü&=,'.padEnd(schema.minLength ?? 0, 'x');
  return text.slice(0, schema.maxLength ?? text.length);
}

const out = [];
for (const [path, item] of Object.entries(spec.paths)) {
  for (const method of ['get', 'put', 'post', 'delete', 'patch']) {
    const operation = item[method];
    if (!operation) continue;
    operation.parameters = (operation.parameters ?? []).map(resolve);
    const named = new Set(operation.parameters.map((p) => `${p.in} ${p.name}`));
    operation.parameters.push(...(item.parameters ?? []).map(resolve).filter((p) => !named.has(`${p.in} ${p.name}`)));
    if (operation.requestBody) operation.requestBody = resolve(operation.requestBody);
    const parameters = {};
    for (const parameter of operation.parameters) {
      if (parameter.in === 'cookie' || /^(accept|content-type|authorization)$/i.test(parameter.name)) continue;
      const media = Object.values(parameter.content ?? {})[0];
      let value = sample(parameter.schema ?? media?.schema);
      if (parameter.in === 'header' && typeof value === 'string') value = value.replace(/[^ -~]/g, '');
      // The table of styles in 3.1.1, section 4.8.12.4, has objects between spaces and pipes; swagger-client writes commas.
      const commas = /^(space|pipe)Delimited$/.test(parameter.style) && typeof value === 'object' && !Array.isArray(value);
      if (commas) continue;
      // What is read by its type alone: swagger-client looks at it, not behind references.
      if (parameter.schema) parameter.schema = resolve(parameter.schema);
      parameters[parameter.name] = value;
    }
    const media = Object.keys(operation.requestBody?.content ?? {});
    const chosen = media.find((m) => /json/.test(m)) ?? media.find((m) => /urlencoded/.test(m));
    const content = chosen && operation.requestBody.content[chosen];
    if (content?.schema) content.schema = resolve(content.schema);
    const body = content ? sample(content.schema) : undefined;
    const asked = {
      spec: { ...spec, paths: { [path]: { [method]: { ...operation, operationId: 'it' } } } },
      operationId: 'it',
      parameters: Object.fromEntries(operation.parameters.filter((p) => p.name in parameters).map((p) => [`${p.in}.${p.name}`, parameters[p.name]])),
    };
    if (body !== undefined) Object.assign(asked, { requestBody: body, requestContentType: chosen });
    const entry = { operation: `${method.toUpperCase()} ${path}`, parameters, body };
    try {
      const made = SwaggerClient.buildRequest(asked);
      const text = made.body === undefined ? undefined : typeof made.body === 'string' ? made.body : JSON.stringify(made.body);
      entry.request = { method: made.method, url: made.url, headers: made.headers, body: text };
    } catch (error) {
      entry.failed = String(error);
    }
    out.push(entry);
  }
}
process.stdout.write(JSON.stringify(out));
