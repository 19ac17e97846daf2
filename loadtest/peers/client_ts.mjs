// Legacy-era HTTP client: official TypeScript SDK 1.x over streamable HTTP.
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { runOperation, USAGE_EXIT } from './client_common.mjs';

const usage = 'usage: client_ts.mjs URL TOKEN (list | call NAME JSON_ARGS)';
const [url, token, ...operation] = process.argv.slice(2);
if (url === undefined || token === undefined) {
  console.error(usage);
  process.exit(USAGE_EXIT);
}
const headers = token === '' ? {} : { Authorization: `Bearer ${token}` };
const transport = new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers } });
process.exitCode = await runOperation(transport, operation, usage);
