// A client of the matrix: the official TypeScript client 2.x, which asks for the modern era first.
import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { run } from './matrix_actions.mjs';

await run(async (url, headers) => {
  const transport = new StreamableHTTPClientTransport(url, { requestInit: { headers } });
  const client = new Client(
    { name: 'matrix-ts2', version: '1.0.0' },
    { capabilities: { elicitation: { form: {} } }, versionNegotiation: { mode: 'auto' } },
  );
  const peer = {
    era: () => client.getNegotiatedProtocolVersion(),
    list: async () => (await client.listTools()).tools,
    call: (name, args, options) => client.callTool({ name, arguments: args }, options),
    read: (uri) => client.readResource({ uri }),
    prompt: (name, args) => client.getPrompt({ name, arguments: args }),
    async subscribe(uri, updated) {
      client.setNotificationHandler('notifications/resources/updated', ({ params }) => updated(params.uri));
      if (client.getProtocolEra() === 'legacy') {
        await client.subscribeResource({ uri });
        return () => client.unsubscribeResource({ uri }).catch(() => {});
      }
      const subscription = await client.listen({ resourceSubscriptions: [uri] });
      if (!subscription.honoredFilter.resourceSubscriptions?.includes(uri)) {
        await subscription.close();
        throw Object.assign(new Error(`not honoured: ${JSON.stringify(subscription.honoredFilter)}`), { code: 'NotHonoured' });
      }
      return () => subscription.close();
    },
    async close() {
      await transport.terminateSession().catch(() => {});
      await client.close();
    },
  };
  client.setRequestHandler('elicitation/create', ({ params }) => peer.answer(params));
  await client.connect(transport);
  return peer;
});
