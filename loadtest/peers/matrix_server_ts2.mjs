// The matrix's server on the TypeScript SDK 2.x, over Streamable HTTP: one of everything that the
// matrix tries. Dual era; the legacy era is served without sessions, as the SDK does by default.
// Prints its URL as the first line.
import { createServer } from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';
import { acceptedContent, createMcpHandler, fromJsonSchema, inputRequired, McpServer } from '@modelcontextprotocol/server';
import { localhostHostValidation, localhostOriginValidation, toNodeHandler } from '@modelcontextprotocol/node';

const RESOURCE = 'matrix://note';
const NOTHING = fromJsonSchema({ type: 'object', properties: {} });
const MESSAGE = fromJsonSchema({
  type: 'object', properties: { message: { type: 'string' } }, required: ['message'],
});
const SLOW = fromJsonSchema({ type: 'object', properties: { steps: { type: 'integer' }, step_ms: { type: 'integer' } } });
const FORM = { type: 'object', properties: { name: { type: 'string', title: 'Name' } }, required: ['name'] };

let cancelled = 0;
const text = (value) => ({ content: [{ type: 'text', text: value }] });

// Reports each step; counts a cancellation, and ends at once.
async function slow({ steps = 4, step_ms = 100 }, ctx) {
  const progressToken = ctx.mcpReq._meta?.progressToken;
  for (let step = 1; step <= steps; step++) {
    try {
      await sleep(step_ms, undefined, { signal: ctx.mcpReq.signal });
    } catch {
      cancelled++;
      return text('cancelled');
    }
    if (progressToken === undefined) continue;
    const params = { progressToken, progress: step, total: steps, message: `step ${step}` };
    await ctx.mcpReq.notify({ method: 'notifications/progress', params });
  }
  return text(`slow: ${steps} steps`);
}

// Asks for a name, and greets it. On the legacy era the SDK turns this into a request of the server.
function elicit(_, ctx) {
  const form = acceptedContent(ctx.mcpReq.inputResponses, 'who');
  if (form !== undefined) return text(`elicited: ${form.name}`);
  if (ctx.mcpReq.inputResponses?.who !== undefined) return text('elicited: nothing');
  const who = inputRequired.elicit({ message: 'What is your name?', requestedSchema: FORM });
  return inputRequired({ inputRequests: { who } });
}

function build() {
  const server = new McpServer(
    { name: 'matrix-ts2', version: '1.0.0' },
    { capabilities: { resources: { subscribe: true } } },
  );
  const tool = (name, description, inputSchema, run) => server.registerTool(name, { description, inputSchema }, run);
  tool('echo', 'Returns the message', MESSAGE, ({ message }) => text(`echo: ${message}`));
  tool('slow', 'Takes its time and reports progress', SLOW, slow);
  tool('elicit', 'Asks the user for a name', NOTHING, elicit);
  tool('touch', `Updates ${RESOURCE}`, NOTHING, () => {
    handler.notify.resourceUpdated(RESOURCE);
    return text('touched');
  });
  tool('cancelled_count', 'How many slow calls were cancelled', NOTHING, () => text(String(cancelled)));
  server.registerResource('note', RESOURCE, { description: 'A note', mimeType: 'text/plain' }, () => ({
    contents: [{ uri: RESOURCE, mimeType: 'text/plain', text: 'a note' }],
  }));
  const argsSchema = fromJsonSchema({
    type: 'object', properties: { name: { type: 'string' } }, required: ['name'],
  });
  server.registerPrompt('greet', { description: 'Greets someone', argsSchema }, ({ name }) => ({
    messages: [{ role: 'user', content: { type: 'text', text: `Greet ${name}.` } }],
  }));
  return server;
}

const handler = createMcpHandler(build, { onerror: (error) => console.error(error.message) });
const serve = toNodeHandler(handler);
const ours = [localhostHostValidation(), localhostOriginValidation()];
const http = createServer((request, response) => {
  if (ours.every((valid) => valid(request, response))) void serve(request, response);
});
http.listen(Number(process.env.PORT ?? 0), '127.0.0.1', () => {
  console.log(`http://127.0.0.1:${http.address().port}/mcp`);
});
