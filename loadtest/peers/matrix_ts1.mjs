// A client of the matrix: the official TypeScript SDK 1.x, which speaks the legacy era alone.
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { ElicitRequestSchema, ResourceUpdatedNotificationSchema } from '@modelcontextprotocol/sdk/types.js';
import { run } from './matrix_actions.mjs';

await run(async (url, headers) => {
  const transport = new StreamableHTTPClientTransport(url, { requestInit: { headers } });
  const client = new Client({ name: 'matrix-ts1', version: '1.0.0' }, { capabilities: { elicitation: { form: {} } } });
  const peer = {
    era: () => transport.protocolVersion,
    list: async () => (await client.listTools()).tools,
    call: (name, args, options) => client.callTool({ name, arguments: args }, undefined, options),
    read: (uri) => client.readResource({ uri }),
    prompt: (name, args) => client.getPrompt({ name, arguments: args }),
    async subscribe(uri, updated) {
      client.setNotificationHandler(ResourceUpdatedNotificationSchema, ({ params }) => updated(params.uri));
      await client.subscribeResource({ uri });
      return () => client.unsubscribeResource({ uri }).catch(() => {});
    },
    async close() {
      await transport.terminateSession().catch(() => {});
      await client.close();
    },
  };
  client.setRequestHandler(ElicitRequestSchema, ({ params }) => peer.answer(params));
  await client.connect(transport);
  return peer;
});
