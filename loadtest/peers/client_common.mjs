// Shared by client_ts.mjs and client_stdio.mjs: run one operation with the official TypeScript
// SDK 1.x and print what came over the wire, not what the SDK made of it.
import { Client } from '@modelcontextprotocol/sdk/client/index.js';

export const USAGE_EXIT = 2;

// op: ['list'] or ['call', name, jsonArguments]. Returns the process exit code.
export async function runOperation(transport, [verb, name, json], usage) {
  if (verb !== 'list' && !(verb === 'call' && name !== undefined)) {
    console.error(usage);
    return USAGE_EXIT;
  }
  const args = JSON.parse(json ?? '{}');

  // The SDK calls this before it handles a message itself, so `last` is the raw response.
  let last;
  transport.onmessage = (message) => {
    if (message.id !== undefined && message.method === undefined) last = message;
  };

  // No capabilities: some servers list more tools to a client that declares roots, sampling, ...
  const client = new Client({ name: 'rollcall-peer-ts', version: '1.0.0' });
  let output;
  try {
    await client.connect(transport);
    last = undefined;
    if (verb === 'list') {
      const tools = [];
      let cursor;
      do {
        await client.listTools(cursor === undefined ? undefined : { cursor });
        tools.push(...last.result.tools);
        cursor = last.result.nextCursor;
      } while (cursor !== undefined);
      output = { tools };
    } else {
      await client.callTool({ name, arguments: args });
      output = last.result;
    }
  } catch (error) {
    if (last?.error === undefined) {
      console.error(`${error.name ?? 'Error'} ${error.code ?? ''}: ${error.message}`);
      return 1;
    }
    const { code, message, data } = last.error;
    output = { error: { code, message, data } };
  } finally {
    await transport.terminateSession?.().catch(() => {});
    await client.close().catch(() => {});
  }
  process.stdout.write(JSON.stringify(output) + '\n');
  return 0;
}
